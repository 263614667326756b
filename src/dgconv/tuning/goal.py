"""What is asked of a tuning, and what became of it so far: one file in its run folder, written after each step."""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..errors import UserError
from ..files import read_whole, write_atomically
from ..layers.gate import check_pruning_rate
from ..train.distributed import rank
from ..train.tables import DataTable, Precision
from ..values import COUNT, FACTOR, LONGEST_JSON, POSITIVE, load_json, read_values

STATE = "tune.json"
POLL = 0.2  # seconds between looks of other processes at what the first one has done
Against = Literal["static"]


@dataclass(frozen=True)
class Goal:
    """How far to go, and at what price.

    Args:
        target_speedup: of the whole network over its fastest dense form in float32, any runtime's.
        max_drop: points by which the error may rise; the pruning rate is lowered after the training until it does not
            rise by more.
        pruning_rate: share of the input channels that each head leaves out; default 3/4.
        time: minutes that all of it may take.
        epochs: of the fine-tuning; default as many as fit into the time, at most 30.
        against: "static" prunes filters of the original network under the same epochs, too, to compare.
        precision: of the training; default "bfloat16" where the machine is faster at it, else "float32".
        replace_head: put in a new last layer where the classes are others, and train that first.
        threads: to time with, the first number decides; default 1.
    """

    target_speedup: float | None = None
    max_drop: float | None = None
    pruning_rate: float | None = None
    time: float = 60.0
    epochs: int | None = None
    batch_size: int = 64
    learning_rate: float = 0.02
    distillation_weight: float = 1.0
    against: Against | None = None
    precision: Precision | None = None
    replace_head: bool = False
    threads: tuple[int, ...] = (1,)
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (("time", POSITIVE), ("batch_size", COUNT), ("learning_rate", FACTOR)):
            allowed.check(name, getattr(self, name))
        for name, allowed in (("target_speedup", POSITIVE), ("max_drop", FACTOR), ("epochs", COUNT)):
            if (value := getattr(self, name)) is not None:
                allowed.check(name, value)
        if self.pruning_rate is not None:
            check_pruning_rate(self.pruning_rate)
        if self.target_speedup is not None and self.pruning_rate is not None:
            raise UserError("give a `target_speedup` or a `pruning_rate`, not both: the one follows from the other")


@dataclass(frozen=True)
class Request:
    """Which network, with which weights, on which data, how far."""

    network: str
    weights: str | None = None
    data: DataTable = field(default_factory=DataTable)
    goal: Goal = field(default_factory=Goal)


class State:
    """The steps that are done, with what came out of each. Under torchrun the first process does them for all."""

    def __init__(self, folder: Path, request: Request, done: dict[str, Any] | None = None) -> None:
        self.folder, self.request, self.done = folder, request, done or {}

    @staticmethod
    def read(folder: Path) -> "State":
        path = folder / STATE
        try:
            values = load_json(read_whole(path, LONGEST_JSON))
            if not isinstance(values, dict) or not isinstance(values.get("request"), dict):
                raise ValueError("it is no record of a tuning")
        except FileNotFoundError:
            raise UserError(f"{folder} holds no {STATE}, so no tuning was begun in it. Name its run folder") from None
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read: {error}. Begin the tuning anew in another folder") from None
        parts: Mapping[str, Any] = values["request"]
        request = Request(
            network=str(parts.get("network", "")),
            weights=parts.get("weights"),
            data=read_values(DataTable, parts.get("data", {}), f"{path}: data"),
            goal=read_values(Goal, parts.get("goal", {}), f"{path}: goal"),
        )
        return State(folder, request, dict(values.get("done", {})))

    def write(self) -> None:
        if rank() == 0:
            content = {"request": asdict(self.request), "done": self.done}
            write_atomically(self.folder / STATE, (json.dumps(content, indent=1) + "\n").encode())

    def step(self, name: str, do: Callable[[], Any]) -> Any:
        """What a step gave; it is done only once, however often the tuning is stopped and goes on."""
        if name not in self.done:
            if rank() == 0:
                self.done[name] = do()
                self.write()
            else:
                while name not in self.done:
                    time.sleep(POLL)
                    with suppress(UserError):  # which is not there yet
                        self.done = State.read(self.folder).done
        return self.done[name]

    def put(self, name: str, value: Any) -> None:
        """Another value, of a step that was decided anew."""
        self.done[name] = value
        self.write()
