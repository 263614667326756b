"""What ``config.json`` of a run folder holds: checked key by key when it is read. Others may stand beside."""

from typing import Any, Required, TypedDict


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
    """See :mod:`dgconv.analysis.gate_facts`; older records lack some."""

    images: int
    overlap: dict[str, float]
    jumping: float
    variation: float
    error: float
    error_one_choice: float
    error_one_gate: float
    generator: dict[str, float]
    like_start: dict[str, float]


class RunConfig(TypedDict, total=False):
    dgconv: str
    model: ModelOptions
    recipe: dict[str, Any]  # checked when a Recipe is made of it
    input_size: tuple[int, int, int]
    classes: list[str]
    epochs_done: int
    weights: str  # where they are, if not in the folder
    environment: Environment
    measured_macs: Macs
    measured_gates: GateFacts
