"""Trained weights by name, each with a card that says what they are; read offline, from a checkout or a named folder.

Weights NAME are ``NAME.safetensors`` and the card ``NAME.json``, written by ``dgconv results --publish``.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load

from ..errors import UserError
from ..read_values import check_table, load_json, read_values
from ._classifier import ImageClassifier
from .run_config import Macs, ModelOptions
from .storage import create_from_file, put_weights

FOLDER_VARIABLE = "DGCONV_WEIGHTS"
IN_CHECKOUT = Path("results") / "weights"


@dataclass(frozen=True)
class ModelCard:
    """What published weights are. Errors are in percent, MACs those of one image by convention."""

    model: dict[str, Any]  # the arguments of create_model
    data: str
    input_size: list[int]
    mean: list[float]  # what images are normalised by, of 0..1 pixels
    std: list[float]
    classes: list[str]
    error: float  # on the test images, after the last epoch
    macs: dict[str, float]
    parameters: int
    recipe: str
    seed: int
    epochs: int
    precision: str
    trained_on: str
    dgconv: str  # the version that trained it
    sha256: str  # of the weights file
    changes: str = ""  # what was set otherwise than in the recipe

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"


def weights_folder() -> Path:
    """The one named by DGCONV_WEIGHTS, else ``results/weights`` of the checkout that dgconv runs from."""
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named).expanduser()
    return Path(__file__).resolve().parents[3] / IN_CHECKOUT


def list_cards(folder: Path | None = None) -> dict[str, ModelCard]:
    """Every card of a folder, by default of the one that weights are read from, by the name of its weights."""
    return {path.stem: read_card(path) for path in sorted((folder or weights_folder()).glob("*.json"))}


def read_card(path: Path) -> ModelCard:
    try:
        values = load_json(path.read_text(encoding="utf-8"))
        card = read_values(ModelCard, values, "it", ignore_unknown=True)
        check_table(ModelOptions, card.model, "it: model")
        check_table(Macs, card.macs, "it: macs")
        return card
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a model card: {error}. 'dgconv results --publish RUN' writes one") from None


def find_run(name: Path) -> Path:
    """A run folder, or by the name of published weights the record of their run, which says where they are."""
    if name.exists() or len(name.parts) != 1:
        return name
    cards = list_cards()
    if str(name) not in cards:
        if not cards:
            return name  # whoever reads it says what a run folder is
        raise UserError(
            f"there is no run folder {name}, and no published network of that name. Published: {', '.join(cards)}"
        )
    record = weights_folder().parent / name / f"seed{cards[str(name)].seed}"
    if not record.is_dir():
        raise UserError(
            f"the record of the published network {name} is not in {record}, so how it was trained is not known. "
            f"In Python, create_model({cards[str(name)].model['name']!r}, pretrained={str(name)!r}) loads it without"
        )
    return record


def create_pretrained(model: str, which: bool | str, options: dict[str, Any]) -> ImageClassifier:
    """What ``create_model(model, pretrained=which, **options)`` gives: like every new model, in training mode."""
    name, card = find_card(model, which, options)
    network = create_from_file(card.model, weights_folder() / f"{name}.json")
    if tuple(card.input_size) != network.input_size:
        raise UserError(
            f"the weights {name!r} were trained on {_size(card.input_size)} images, "
            f"but {model} is made for {_size(network.input_size)}"
        )
    path = weights_folder() / f"{name}.safetensors"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}. Its card is there; fetch the file again") from None
    if hashlib.sha256(content).hexdigest() != card.sha256:
        raise UserError(f"{path} is not the file its card describes: the SHA-256 differs. Fetch both again")
    put_weights(network, load(content), path)
    return network


def find_card(model: str, which: bool | str, options: dict[str, Any]) -> tuple[str, ModelCard]:
    """The weights asked for by name, or the only ones of a model that fit.

    Args:
        which: the name of the weights, or True for whichever fit.
        options: what was given to ``create_model`` beside the name; the weights must have been trained with it.
    """
    cards = {name: card for name, card in list_cards().items() if which is True or name == which}
    of_model = {name: card for name, card in cards.items() if card.model["name"] == model}
    if not of_model:
        what = f"pretrained weights of {model}" + ("" if which is True else f" called {which!r}")
        known = ", ".join(f"{name} ({card.model['name']})" for name, card in list_cards().items())
        where = f"{weights_folder()} ({FOLDER_VARIABLE} names another folder)"
        raise UserError(f"there are no {what} in {where}. There are: {known or 'none at all'}")
    differences = {name: _differences(card, options) for name, card in of_model.items()}
    fitting = [name for name, found in differences.items() if not found]
    if not fitting:
        reasons = "; ".join(f"those called {name!r} have {', '.join(found)}" for name, found in differences.items())
        hint = " For other classes load them as they are and call model.reset_classifier(n)."
        raise UserError(
            f"no pretrained weights of {model} fit what was asked for: {reasons}. Leave these options out."
            + (hint if "num_classes" in options else "")
        )
    if len(fitting) > 1:
        choices = " or ".join(f"pretrained={name!r}" for name in fitting)
        raise UserError(f"{len(fitting)} sets of weights fit {model}; say which: {choices}")
    return fitting[0], of_model[fitting[0]]


def _differences(card: ModelCard, options: dict[str, Any]) -> list[str]:
    """What the weights were not trained with; an option that a card does not name had its default."""
    return [
        f"{key} {card.model.get(key, 'as it is by default')}, not {value}"
        for key, value in options.items()
        if card.model.get(key) != (list(value) if isinstance(value, tuple) else value)  # a card is JSON
    ]


def _size(size: Sequence[int]) -> str:
    return " x ".join(map(str, size))
