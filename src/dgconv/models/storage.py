"""Models on disk: ``config.json`` and ``model.safetensors`` in a folder. No pickle is ever written or read."""

import json
import os
import tempfile
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from .. import __version__
from ..errors import UserError, unknown_name
from ..file_lock import hold_open_file
from ..read_values import check_option, check_table, load_json
from ._classifier import ImageClassifier
from ._registry import create_model, list_models, option_kinds
from .run_config import RunConfig

UNFINISHED = ".unfinished"
LONGEST = 50  # characters of a file's name in that of an unfinished one, which must not become too long
CONFIG, WEIGHTS, CHECKPOINT = "config.json", "model.safetensors", "checkpoint.safetensors"


def save_model(model: ImageClassifier, folder: Path | str, **extra: Any) -> None:
    """Write a model that ``create_model`` built; ``extra`` goes into ``config.json`` beside it."""
    if not hasattr(model, "config"):
        raise UserError(
            f"save_model(model, folder) takes a model that create_model built by name, and {type(model).__name__} has "
            "no .config. Keep the weights of any other network with its state_dict"
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_weights(folder / WEIGHTS, snapshot(model))
    save_config(folder, model.config, **extra)


def save_config(folder: Path, model_config: dict[str, Any], **extra: Any) -> None:
    config = {"dgconv": __version__, "model": model_config, **extra}
    write_atomically(folder / CONFIG, (json.dumps(config, indent=2) + "\n").encode())


def save_weights(path: Path, tensors: dict[str, Tensor]) -> None:
    write_atomically(path, save(tensors))


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """The state of a model as it is now, whatever happens to the model later."""
    return {name: copy_to_cpu(tensor) for name, tensor in model.state_dict().items()}


def copy_to_cpu(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def load_model(folder: Path | str, device: torch.device | str = "cpu") -> ImageClassifier:
    """The model of a run folder, in eval mode."""
    folder = Path(folder)
    config = read_config(folder)
    if "model" not in config:
        raise UserError(f"{folder / CONFIG} has no 'model' entry, so it was not written by dgconv")
    model = create_from_file(config["model"], folder / CONFIG)
    _load_weights(model, folder, config)
    return model.to(device).eval()


def weights_file(folder: Path, config: dict[str, Any]) -> Path:
    """Where the weights of a run folder are: in it, or where its config says, as a record does of published ones."""
    return folder / config.get("weights", WEIGHTS)


def create_from_file(options: dict[str, Any], file: Path) -> ImageClassifier:
    """``create_model(**options)``; an option that the file has wrong is named."""
    try:
        if (name := options["name"]) not in list_models():
            hint = "If the backbone is your own, import the module that registers it first"
            raise UserError(f"{unknown_name('model', name, list_models())} {hint}")
        kinds = option_kinds(name)
        for option in options.keys() & kinds.keys():
            if options[option] is not None:
                check_option(options[option], kinds[option], f"model.{option}")
        return create_model(**options)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    except Exception as error:  # of any kind: nobody else checks what a file says
        raise UserError(f"{file}: the 'model' entry cannot be used: {error}") from error


def read_config(folder: Path) -> dict[str, Any]:
    """``config.json`` of a run folder, checked; what is null there is left out."""
    path = folder / CONFIG
    try:
        config = load_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if (folder / CHECKPOINT).exists():
            raise UserError(
                f"{folder} was stopped in its first epoch, and has no network to look at yet. "
                f"Go on with: dgconv train --resume {folder}"
            ) from None
        raise UserError(
            f"{folder} is not a run folder: it has no {CONFIG}. 'dgconv train' and 'dgconv import-authors' write one"
        ) from None
    except NotADirectoryError:
        raise UserError(f"{folder} is a file, and not a run folder; name the folder that it is in") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    check_table(RunConfig, config, str(path))
    if any(size < 1 for size in config.get("input_size") or ()):
        raise UserError(f"{path}: input_size must be channels, height and width, each at least 1")
    return {key: value for key, value in config.items() if value is not None}


def input_size_of(run: Path, model: ImageClassifier) -> tuple[int, int, int]:
    """Channels, height and width a run was trained on; as the paper trains the model, where the folder does not say."""
    channels, height, width = read_config(run).get("input_size") or model.input_size
    return channels, height, width


def _load_weights(model: nn.Module, folder: Path, config: dict[str, Any]) -> None:
    path = weights_file(folder, config)
    if "weights" in config:
        why, again = f"{folder / CONFIG} names it", "Fetch it again"
    else:
        why = "the run was not finished, or the file was moved"
        again = f"If there is a {CHECKPOINT}, it is written again by: dgconv train --resume {folder}"
    try:
        tensors = load_file(path)
    except FileNotFoundError:
        raise UserError(f"{path} is missing: {why}. {again}") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged or not a safetensors file: {error}. {again}") from None
    put_weights(model, tensors, path)


def put_weights(model: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """The whole state of a model, or a ``UserError`` that says what in the file does not fit."""
    expected = model.state_dict()
    problems = [f"missing {name}" for name in expected if name not in tensors]
    problems += [f"unexpected {name}" for name in tensors if name not in expected]
    problems += [
        f"{name} is {list(tensors[name].shape)}, expected {list(tensor.shape)}"
        for name, tensor in expected.items()
        if name in tensors and tensors[name].shape != tensor.shape
    ]
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise UserError(f"{path} does not fit the network as it is built now: {'; '.join(problems[:5])}{more}")
    model.load_state_dict(tensors)


def write_atomically(path: Path, data: bytes) -> None:
    """All or nothing: a reader sees the old file or the new one, whenever the machine stops.

    A link stays one, and what is no file, a device or a pipe, is not replaced by one but written to.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    path = path.resolve()
    _remove_leftovers(path)
    descriptor, temporary = tempfile.mkstemp(UNFINISHED, f".{path.name[:LONGEST]}.", path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            hold_open_file(file)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _remove_leftovers(path: Path) -> None:
    """Of writers that were killed. One at work holds its file before it writes, so one that is empty is let be."""
    for leftover in path.parent.glob(f".{escape(path.name[:LONGEST])}.*{UNFINISHED}"):
        with suppress(OSError), leftover.open("r+b") as file:
            if os.fstat(file.fileno()).st_size and hold_open_file(file):
                leftover.unlink()
