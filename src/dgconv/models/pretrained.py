"""Trained weights by name, each with a card that says what they are; read offline, from a checkout or a named folder.

Weights NAME are ``NAME.safetensors`` and the card ``NAME.json``. A checkout of the repository has some; elsewhere the
folder that holds them is named by the environment variable DGCONV_WEIGHTS.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import UserError
from ..files import open_file, read_whole
from ..runs import RunFolder
from ..runs.config import Macs, ModelOptions
from ..runs.tensors import read_tensors
from ..values import LONGEST_JSON, check_table, load_json, read_values
from ._classifier import ImageClassifier
from ._room import Room
from .storage import create_from_file, put_weights

FOLDER_VARIABLE = "DGCONV_WEIGHTS"
CHECKOUT = Path(__file__).resolve().parents[3]  # of the repository, if dgconv runs from one
IN_CHECKOUT = Path("results") / "weights"
AS_IT_IS = "unchanged"  # the folder of the records of a recipe about which nothing was changed
WHERE_TO_GET_THEM = (
    "Trained weights are not part of the package: they lie in results/weights of its repository. Run dgconv from a "
    f"checkout of that, or set {FOLDER_VARIABLE} to a folder with the .safetensors and .json files"
)


@dataclass(frozen=True)
class ModelCard:
    """What published weights are. Errors are in percent, MACs those of one image by convention."""

    model: dict[str, Any]  # the arguments of create_model
    data: str
    input_size: list[int]
    mean: list[float]  # what images are normalized by, of 0..1 pixels
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


def weights_folder() -> Path | None:
    """The one named by DGCONV_WEIGHTS, else ``results/weights`` of the checkout that dgconv runs from, if it does."""
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named).expanduser()
    return CHECKOUT / IN_CHECKOUT if (CHECKOUT / IN_CHECKOUT).is_dir() else None


def list_cards(folder: Path | None = None) -> dict[str, ModelCard]:
    """Every card of a folder, by default of the one that weights are read from, by the name of its weights."""
    folder = folder or weights_folder()
    return {path.stem: read_card(path) for path in sorted(folder.glob("*.json"))} if folder else {}


def read_card(path: Path) -> ModelCard:
    try:
        values = load_json(read_whole(path, LONGEST_JSON))
        card = read_values(ModelCard, values, "it", ignore_unknown=True)
        check_table(ModelOptions, card.model, "it: model")
        check_table(Macs, card.macs, "it: macs")
        return card
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a model card: {error}. Fetch it again") from None


def find_run(name: Path) -> RunFolder:
    """A run folder, or by the name of published weights the record of their run, which says where they are."""
    if name.exists() or len(name.parts) != 1:
        return RunFolder(name)
    cards, weights = list_cards(), weights_folder()
    if str(name) not in cards or weights is None:
        published = f"Published: {', '.join(cards)}" if cards else WHERE_TO_GET_THEM
        raise UserError(f"there is no run folder {name}, and no published network of that name. {published}")
    card = cards[str(name)]
    change = str(name).removeprefix(card.recipe).removeprefix("+") or AS_IT_IS
    record = weights.parent / card.recipe / change / f"seed{card.seed}"
    if not record.is_dir():
        raise UserError(
            f"the record of the published network {name} is not in {record}, so how it was trained is not known. "
            f"In Python, create_model({card.model['name']!r}, pretrained={str(name)!r}) loads it without"
        )
    return RunFolder(record)


def create_pretrained(model: str, which: bool | str, options: dict[str, Any]) -> ImageClassifier:
    """What ``create_model(model, pretrained=which, **options)`` gives: like every new model, in training mode."""
    folder = weights_folder()
    if folder is None:
        raise UserError(f"there are no pretrained weights of {model} here. {WHERE_TO_GET_THEM}")
    name, card = find_card(model, which, options)
    path = folder / f"{name}.safetensors"
    tensors = _read_weights(path, card)
    room = Room.of({key: tensor.shape for key, tensor in tensors.items()})
    network = create_from_file(card.model, folder / f"{name}.json", room)
    if tuple(card.input_size) != network.input_size:
        raise UserError(
            f"the weights {name!r} were trained on {_size(card.input_size)} images, "
            f"but {model} is made for {_size(network.input_size)}"
        )
    put_weights(network, tensors, path)
    return network


def _read_weights(path: Path, card: ModelCard) -> dict[str, Tensor]:
    try:
        with open_file(path) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        if digest == card.sha256:
            return read_tensors(path).tensors
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}. Its card is there; fetch the file again") from None
    except ValueError as error:
        raise UserError(f"{path} is not a safetensors file: {error}. Fetch it and its card again") from None
    raise UserError(f"{path} is not the file its card describes: the SHA-256 differs. Fetch both again")


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
