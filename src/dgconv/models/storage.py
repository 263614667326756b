"""Models on disk, in run folders: what they are built from, and their weights. No pickle is ever written or read."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError, unknown_name
from ..runs import RunFolder
from ..runs.tensors import read_tensors
from ..values import check_option
from ._classifier import ImageClassifier
from ._registry import build_model, is_known, list_models, options_of
from ._room import MOST, WITHOUT_WEIGHTS, NoLargerThan, Room

PRUNING = "pruning."  # names of what a pruning method adds to a network
KINDS = {"num_classes": int, "widths": dict[str, list[int]]}  # of what every model takes


def save_model(model: ImageClassifier, folder: Path | str, **extra: Any) -> None:
    """Write a model that ``create_model`` built; ``extra`` goes into the config beside it."""
    if not hasattr(model, "config"):
        raise UserError(
            f"save_model(model, folder) takes a model that create_model built by name, and {type(model).__name__} has "
            "no .config. Keep the weights of any other network with its state_dict"
        )
    run = RunFolder(folder)
    run.path.mkdir(parents=True, exist_ok=True)
    run.write_weights(snapshot(model))
    run.write_config(model.config, **extra)


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """The state of a model as it is now, whatever happens to the model later."""
    return {name: copy_to_cpu(tensor) for name, tensor in model.state_dict().items()}


def copy_to_cpu(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def load_model(run: RunFolder | Path | str, device: torch.device | str = "cpu") -> ImageClassifier:
    """The model of a run folder, in eval mode."""
    run = run if isinstance(run, RunFolder) else RunFolder(run)
    weights = run.weights()  # first: their shapes are known then, and the file is read once
    model = _build(run, Room.of(run.weight_shapes))
    put_weights(model, weights, run.weights_file)
    return model.to(device).eval()


def build_from_run(run: RunFolder) -> ImageClassifier:
    """The network of a run folder without its weights."""
    room = WITHOUT_WEIGHTS
    if run.has_weights:
        with suppress(UserError):  # damaged ones are of no use here, and who wants them is told
            room = Room.of(run.weight_shapes)
    return _build(run, room)


def _build(run: RunFolder, room: Room) -> ImageClassifier:
    if "model" not in run.config:
        raise UserError(f"{run.config_file} has no 'model' entry, so it was not written by dgconv")
    return create_from_file(run.config["model"], run.config_file, room)


def create_from_file(options: dict[str, Any], file: Path, room: Room = WITHOUT_WEIGHTS) -> ImageClassifier:
    """``create_model(**options)``, if there is room for it; an option that the file has wrong is named."""
    if options.get("widths"):  # it is made whole, and cut then
        room = room._replace(numbers=max(room.numbers, MOST))
    try:
        if not is_known(name := options["name"]):
            hint = "If the backbone is your own, import the module that registers it first"
            raise UserError(f"{unknown_name('model', name, list_models())} {hint}")
        kinds = {option.name: option.kind for option in options_of(name).values()} | KINDS
        for option in options.keys() & kinds.keys():
            if options[option] is not None:
                check_option(options[option], kinds[option], f"model.{option}")
        with NoLargerThan(room):
            return build_model(**options)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    except Exception as error:  # of any kind: nobody else checks what a file says
        raise UserError(f"{file}: the 'model' entry cannot be used: {error}") from error


def input_size_of(run: RunFolder, model: ImageClassifier) -> tuple[int, int, int]:
    """Channels, height and width a run was trained on; as the paper trains the model, where the folder does not say."""
    channels, height, width = run.config.get("input_size") or model.input_size
    return channels, height, width


def put_weights(model: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """The whole state of a model, or a ``UserError`` that says what in the file does not fit."""
    refuse_misfits(model.state_dict(), tensors, path)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:  # a layer refuses what its buffers are to hold
        raise _misfit([line.strip().rstrip(".") for line in str(error).splitlines()[1:]], path) from None


def refuse_misfits(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor], path: Path) -> None:
    """Tensors of a file that are not those that are expected, by name, shape and type."""
    problems = [f"missing {name}" for name in expected if name not in tensors]
    problems += [f"unexpected {name}" for name in tensors if name not in expected]
    for name, tensor in expected.items():
        if name not in tensors:
            continue
        if tensors[name].shape != tensor.shape:
            problems.append(f"{name} is {list(tensors[name].shape)}, expected {list(tensor.shape)}")
        elif not _fits(tensors[name].dtype, tensor.dtype):
            problems.append(f"{name} is {tensors[name].dtype}, expected {tensor.dtype}")
    if problems:
        raise _misfit(problems, path)


def _misfit(problems: list[str], path: Path) -> UserError:
    more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
    return UserError(f"{path} does not fit the network as it is built now: {'; '.join(problems[:5])}{more}")


def start_from(model: nn.Module, source: Path | str) -> None:
    """Puts trained weights of the same network into one that is to be trained, and pruned perhaps, from there.

    ``source`` is a run folder or a safetensors file. What pruning keeps for itself is left as it is, and not taken.
    """
    path = Path(source)
    if path.suffix == ".safetensors":
        try:
            tensors = read_tensors(path).tensors
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read as a safetensors file: {error}") from None
    else:
        run = RunFolder(path)
        tensors, path = run.weights(), run.weights_file
    own = {name: tensor for name, tensor in model.state_dict().items() if name.startswith(PRUNING)}
    put_weights(model, {name: t for name, t in tensors.items() if not name.startswith(PRUNING)} | own, path)


def _fits(stored: torch.dtype, wanted: torch.dtype) -> bool:
    """Whether nothing is lost but digits: copied, a NaN would become any count."""
    return stored == wanted or (stored.is_floating_point and wanted.is_floating_point)
