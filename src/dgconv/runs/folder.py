"""One run folder: reads each of its files once, when it is first asked for, and writes them whole or not at all."""

import json
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from ..errors import UserError
from ..files import write_atomically
from ..version import __version__
from .checkpoint import Checkpoint, load_checkpoint
from .config import read_config
from .metrics import read_metrics
from .names import BEST, CHECKPOINT, CONFIG, DIVERGED, METRICS, WEIGHTS
from .tensors import read_shapes, read_tensors, to_bytes

T = TypeVar("T")


class RunFolder:
    """What lies in a run folder. Whoever writes to it makes a new one to read that."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    # -- reading -------------------------------------------------------------------------------------------------

    @cached_property
    def config(self) -> dict[str, Any]:
        """The network, the recipe, and what it was trained on."""
        return read_config(self.path)

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of every epoch; None for what was no number. Empty where nothing was written down."""
        return read_metrics(self.path)

    @property
    def metrics_bytes(self) -> bytes:
        """The metrics as they are on disk, to be copied or compared."""
        return (self.path / METRICS).read_bytes()

    @property
    def has_metrics(self) -> bool:
        return (self.path / METRICS).exists()

    @cached_property
    def checkpoint(self) -> Checkpoint:
        return load_checkpoint(self.path)

    @property
    def has_checkpoint(self) -> bool:
        return self.checkpoint_file.exists()

    @property
    def checkpoint_file(self) -> Path:
        """Its path, to be named in messages."""
        return self.path / CHECKPOINT

    @property
    def has_config(self) -> bool:
        return (self.path / CONFIG).exists()

    def refuse_for_several(self) -> None:
        """Refuses it as the place of several runs, whose files would lie among its own."""
        if self.has_config:
            raise UserError(f"{self.path} is the run folder of one network; name another folder with `out`")

    @property
    def config_file(self) -> Path:
        """Its path, to be named in messages."""
        return self.path / CONFIG

    @property
    def weights_file(self) -> Path:
        """Where its weights are: in it, or where its config says, as a record does of published ones."""
        return self.path / self.config.get("weights", WEIGHTS)

    @property
    def diverged_file(self) -> Path:
        """Its path, to be named in messages."""
        return self.path / DIVERGED

    @property
    def has_weights(self) -> bool:
        return self.weights_file.is_file()

    def weights(self) -> dict[str, Tensor]:
        """The weights of the network after its last whole epoch, by name."""
        tensors = self._read_weights(lambda path: read_tensors(path).tensors)
        self.weight_shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        return tensors

    @cached_property
    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Their shapes, which say how large the network is before it is built."""
        return self._read_weights(read_shapes)

    def _read_weights(self, read: Callable[[Path], T]) -> T:
        path = self.weights_file
        try:
            return read(path)
        except FileNotFoundError:
            raise self._no_weights(f"{path} is missing: {self._why_missing}") from None
        except (OSError, ValueError) as error:
            raise self._no_weights(f"{path} is damaged or not a safetensors file: {error}") from None

    @property
    def _why_missing(self) -> str:
        if "weights" in self.config:
            return f"{self.config_file} names it"
        return "the run was not finished, or the file was moved"

    def _no_weights(self, problem: str) -> UserError:
        if "weights" in self.config:
            return UserError(f"{problem}. Fetch it again")
        if self.has_checkpoint:
            return UserError(f"{problem}. They are written again when it goes on", resume=[self.path])
        return UserError(problem)

    # -- writing -------------------------------------------------------------------------------------------------

    def write_config(self, model: dict[str, Any], **others: Any) -> None:
        """What the network was built from, and whatever stands beside it."""
        self.rewrite_config({"dgconv": __version__, "model": model, **others})

    def rewrite_config(self, config: dict[str, Any]) -> None:
        write_atomically(self.path / CONFIG, (json.dumps(config, indent=2) + "\n").encode())

    def write_metrics(self, content: bytes) -> None:
        """Writes the metrics of another run folder, as they are."""
        write_atomically(self.path / METRICS, content)

    def write_weights(self, tensors: dict[str, Tensor]) -> None:
        write_atomically(self.path / WEIGHTS, to_bytes(tensors))

    def write_best(self, tensors: dict[str, Tensor]) -> None:
        write_atomically(self.path / BEST, to_bytes(tensors))

    def write_diverged(self, tensors: dict[str, Tensor]) -> None:
        write_atomically(self.diverged_file, to_bytes(tensors))
