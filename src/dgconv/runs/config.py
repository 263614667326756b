"""The config of a run folder, checked key by key when it is read; other keys may stand beside these."""

import math
from pathlib import Path
from typing import Any, Required, TypedDict

from ..errors import UserError
from ..files import read_whole
from ..values import LONGEST_JSON, check_table, load_json
from .names import CHECKPOINT, CONFIG

MOST_INPUT = 2**24  # numbers in an image: whoever counts what a network costs makes one of that size


class ModelOptions(TypedDict, total=False):
    """The arguments of ``create_model``; the options of each model are checked when it is built."""

    name: Required[str]
    num_classes: int


class Environment(TypedDict, total=False):
    """What a run was trained on."""

    hardware: str
    threads: int
    torch: str
    date: str
    side_by_side: int


class Macs(TypedDict):
    paper: float
    authors: float


class GateFacts(TypedDict, total=False):
    """How dynamic the gates are; older records lack some."""

    images: int
    overlap: dict[str, float]
    jumping: float
    variation: float
    error: float
    error_one_choice: float
    error_one_gate: float
    generator: dict[str, float]
    like_start: dict[str, float]


class Images(TypedDict):
    """What becomes of an image before the network sees it, as dgconv.data.Inputs has it."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    loses_margin: bool


class RunConfig(TypedDict, total=False):
    dgconv: str
    model: ModelOptions
    recipe: dict[str, Any]  # checked when a Recipe is made of it
    input_size: tuple[int, int, int]
    classes: list[str]
    images: Images
    epochs_done: int
    weights: str  # where they are, if not in the folder
    environment: Environment
    measured_macs: Macs
    measured_gates: GateFacts


def read_config(folder: Path) -> dict[str, Any]:
    """What the config of a run folder says; what is null there is left out."""
    path = folder / CONFIG
    try:
        config = load_json(read_whole(path, LONGEST_JSON))
    except FileNotFoundError:
        if (folder / CHECKPOINT).exists():
            problem = f"{folder} was stopped in its first epoch, and has no network to look at yet"
            raise UserError(problem, resume=[folder]) from None
        raise UserError(
            f"{folder} is not a run folder: it has no {CONFIG}. 'dgconv train' and 'dgconv import-authors' write one"
        ) from None
    except NotADirectoryError:
        raise UserError(f"{folder} is a file, and not a run folder; name the folder that it is in") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    check_table(RunConfig, config, str(path))
    size = config.get("input_size") or (1, 1, 1)
    if min(size) < 1 or math.prod(size) > MOST_INPUT:
        wanted = f"each at least 1 and at most {MOST_INPUT} multiplied"
        raise UserError(f"{path}: input_size must be channels, height and width, {wanted}")
    if "\0" in (config.get("weights") or ""):
        raise UserError(f"{path}: weights must be the path of a file")
    return {key: value for key, value in config.items() if value is not None}
