"""The command that reads the authors' checkpoints."""

from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from ..errors import UserError
from ..models import import_authors_checkpoint, save_model
from ._output import console, show


def import_authors(
    file: Positional[Path],
    out: Positional[Path],
    stem: Literal["cifar", "imagenet"] | None = None,
    json: bool = False,
) -> None:
    """Read a checkpoint of the authors' code and write it as a model of ours.

    Args:
        file: The authors' .tar file.
        out: Folder to write, new or empty.
        stem: Stem of a CondenseNet, which the file does not tell; default cifar up to three stages.
        json: Print JSON instead of a line.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not an empty folder; name another one")
    model = import_authors_checkpoint(file, stem=stem)
    save_model(model, out, imported_from=file.name)
    show(model.config, json, lambda _: console.print(f"{file} -> {out}: {model.config}", soft_wrap=True))
