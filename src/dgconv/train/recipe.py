"""A recipe: everything that decides how a network is trained. Ours are the TOML files in ``dgconv/recipes``."""

import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from ..data import Data, load_data
from ..data.tensor_split import TensorSplit
from ..errors import UserError, unknown_name
from ..layers.gate import KeepRule, TieRule
from ..layers.select import dynamic_layers
from ..models import ImageClassifier, create_model
from ..models.storage import CONFIG, read_config
from ..pruning import PruningMethod
from ..pruning.base import check_amount
from ..read_values import read_values
from .losses import LassoReading
from .schedule import WARM_UP_END

MODEL_OPTIONS = (
    "pruning_rate", "heads", "squeeze", "halve_squeeze", "per_head_init", "keep_rule", "tie_rule", "pre_norm",
    "groups", "condensation", "density", "base_share", "target", "open_share",
    "stages", "growth", "width", "downsample", "stem_stride", "prune", "prune_rate", "prune_budget",
)  # fmt: skip
MOST_COUNT = 10**9  # more is a slip, and torch takes no more than 64 bits
MOST_WEIGHT = 1e30  # float32 ends soon after
MOST_SEED = 2**32  # of it times a million an epoch's order is drawn, and torch takes no more than 64 bits
NO_SETTINGS = {"name", "seed", "data_dir", "workers", "checkpoint_minutes", "compile"}  # change no result but its noise
RECIPES = resources.files("dgconv") / "recipes"
Precision = Literal["float32", "bfloat16"]


class Allowed(NamedTuple):
    """What a number of a recipe may be, in code and in words."""

    fits: Callable[[Any], bool]
    words: str
    hint: str = ""


def _whole(least: int, most: int = MOST_COUNT, hint: str = "") -> Allowed:
    words = f"a whole number from {least} to {most}"
    return Allowed(lambda value: isinstance(value, int) and least <= value <= most, words, hint)


COUNT = _whole(least=1)
FACTOR = Allowed(lambda value: 0 <= value <= MOST_WEIGHT, f"a number from 0 to {MOST_WEIGHT:g}")
SHARE = Allowed(lambda value: 0 <= value < 1, "from 0 to below 1")
ALLOWED = {
    "image_size": _whole(1, 1_000_000),
    "workers": _whole(0, 1000, hint="; 0 decodes without worker processes"),
    "epochs": COUNT,
    "batch_size": COUNT,
    "threshold_every": COUNT,
    "threshold_batches": COUNT,
    "cutout": _whole(0, hint="; 0 blanks nothing"),
    "seed": _whole(-MOST_SEED, MOST_SEED),
    "learning_rate": FACTOR,
    "momentum": SHARE,
    "weight_decay": FACTOR,
    "generator_weight_decay": FACTOR,
    "generator_shrinkage": Allowed(lambda value: 0 <= value <= 1000, "a number from 0 to 1000"),
    "lasso_weight": FACTOR,
    "angle_weight": FACTOR,
    "checkpoint_minutes": FACTOR,
    "label_smoothing": SHARE,
    "ramp_end": Allowed(lambda value: WARM_UP_END < value <= 1, "above 1/12, where pruning begins, and up to 1"),
    "clip_gradients": Allowed(
        lambda value: 0 < value <= MOST_WEIGHT, f"above 0 and up to {MOST_WEIGHT:g}", "; leave it out to clip nothing"
    ),
}  # options of the model are checked where it is built


@dataclass(frozen=True)
class Reported:
    """What the paper reports for a recipe: errors in percent, MACs as printed, or the saving over the dense network."""

    where: str
    error: float | None = None
    top5_error: float | None = None
    macs: float | None = None
    saving: float | None = None
    note: str | None = None  # what to know before holding ours against it


@dataclass(frozen=True)
class Recipe:
    """The defaults train a small CondenseNet-DGC on the embedded digits with the paper's method."""

    name: str = ""
    """Name of the recipe, and of its run folders; a recipe from a file is called like the file."""
    model: str = "condensenet20_dgc"
    """Name of the model, see 'dgconv models'."""
    data: str = "digits"
    """Data set: digits, cifar10, cifar100, parquet or folder."""
    data_dir: str | None = None
    """Folder of the data set; the digits need none."""
    image_size: int | None = None
    """Side of the images, for data sets that are resized."""
    label_column: str | None = None
    """Column to take the labels from, in Parquet files that have several."""
    workers: int | None = None
    """Processes that decode large images; default one a core, at most 8."""
    skip_corrupt_images: bool = False
    """Name corrupt images in a warning and go on without them, instead of stopping at the first."""

    pruning_rate: float | None = None
    """Share of the input channels each head leaves out at the end; default as reported for the model."""
    heads: int | None = None
    """Heads of each dynamic layer."""
    squeeze: int | None = None
    """Squeeze of the saliency generator."""
    halve_squeeze: bool | None = None
    """Halve it where a layer has few channels, as the authors' code does; default yes."""
    per_head_init: bool | None = None
    """Initial scale from the outputs of one head, as in the authors' code, or else from all; default yes."""
    keep_rule: KeepRule | None = None
    """How a fraction of a channel is rounded: ceil as in the paper, round as in the authors' code."""
    tie_rule: TieRule | None = None
    """Who goes when saliencies tie: the higher index, or drop all of them, as the authors' code does."""
    pre_norm: bool | None = None
    """A BN and ReLU in front of every dynamic layer of a ResNet, as the authors' code has; default no."""
    saliency_start: Literal["random", "ones"] = "random"
    """Where saliencies start: at random as in the paper, or all at 1, without which small ResNets overflow."""
    groups: int | None = None
    """Groups of a _sgc, _lgc or _flgc model."""
    condensation: int | None = None
    """Factor by which a _lgc model shrinks the inputs of each group."""
    density: float | None = None
    """Share of the outputs that each image computes in a _fbs model."""
    base_share: float | None = None
    """Share of the inputs in the base path of a _cgnet model."""
    target: float | None = None
    """Where the thresholds of a _cgnet model are drawn to."""
    open_share: float | None = None
    """Share of the outputs that a _lccn model leaves open at the start."""
    mac_budget: float | None = None
    """MACs to hold a _cgnet or _lccn model to while it trains, as a share of the dense model's."""
    stages: tuple[int, ...] | None = None
    """Layers or blocks a stage."""
    growth: tuple[int, ...] | None = None
    """Growth a stage, of a CondenseNet."""
    width: float | None = None
    """Width: the multiplier of a MobileNetV2, the first channels of a ResNet."""
    downsample: tuple[int, ...] | None = None
    """Stages of a MobileNetV2 that halve the size."""
    stem_stride: int | None = None
    """Stride of a MobileNetV2's first convolution."""

    prune: PruningMethod | None = None
    """Static filter pruning of a dense model while it trains: l1, sfp, fpgm or ns, see dgconv.pruning."""
    prune_rate: float | None = None
    """Share of the channels to prune; default 0.3, of ns 0.4."""
    prune_budget: float | None = None
    """Instead of a rate: the MACs to leave, as a share of the dense model's."""

    epochs: int = 30
    batch_size: int = 64
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    label_smoothing: float = 0.0
    """Share of each label that is spread over all classes."""
    cutout: int = 0
    """Side in pixels of a square that is blanked in each training image, for small images that are kept in memory."""
    ramp_end: float = 0.75
    """Where in the training, from 0 to 1, the full pruning rate is reached; it rises from 1/12 on."""
    generator_weight_decay: float | None = None
    """Weight decay of the saliency generators, if not that of all other weights."""
    generator_shrinkage: float | None = None
    """Instead: how often it divides them by e, if there are any, in the whole training; 5.9 in the paper's on CIFAR."""
    clip_gradients: float | None = None
    """Largest norm of all gradients together; larger ones are scaled down to it."""
    lasso_weight: float = 1e-5
    """Weight lambda of the lasso loss."""
    lasso: LassoReading = "authors"
    """How the lasso is summed, see dgconv.train.lasso_loss."""
    angle_weight: float | None = None
    """Weight of the angle loss; default 1e-4 with the global threshold, otherwise 0."""
    threshold_every: int = 3
    """Epochs between updates of the global threshold."""
    threshold_share: Literal["saliencies", "macs"] = "saliencies"
    """What the pruning rate is a share of, with the global threshold."""
    threshold_batches: int = 5
    """Iterations whose saliencies an update looks at."""
    precision: Precision = "float32"
    """bfloat16: the forward pass in mixed precision."""
    compile: bool = False
    """Train through torch.compile: minutes to start, faster steps."""
    checkpoint_minutes: float = 5.0
    """Minutes between checkpoints; there is one after each epoch as well."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in ALLOWED.items():
            value = getattr(self, name)
            is_left_out = value is None and getattr(Recipe, name) is None
            if not is_left_out and not allowed.fits(value):
                raise UserError(f"{name} must be {allowed.words}, got {value}{allowed.hint}")
        if self.generator_shrinkage is not None and not self.learning_rate:
            raise UserError(f"generator_shrinkage needs a learning rate above 0, got {self.learning_rate}")
        if self.generator_shrinkage is not None and self.generator_weight_decay is not None:
            raise UserError(
                "generator_shrinkage and generator_weight_decay say the same thing; give one of them, and None for the "
                f"other, got {self.generator_shrinkage} and {self.generator_weight_decay}"
            )
        check_amount(self.prune_rate, self.prune_budget)
        if self.prune is None and (self.prune_rate is not None or self.prune_budget is not None):
            raise UserError("prune_rate and prune_budget say how much to prune; say also how, with prune")

    @property
    def run_name(self) -> str:
        """What a run folder is called after."""
        return self.name or f"{self.model}{'_' + self.prune if self.prune else ''}-{self.data}"

    @property
    def title(self) -> str:
        """What a display calls it."""
        return f"{self.run_name}, seed {self.seed}"

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that may change a result, but the seed."""
        return {name: value for name, value in self.to_dict().items() if name not in NO_SETTINGS}

    @property
    def autocast_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.precision == "bfloat16" else torch.float32

    def build_model(self, num_classes: int) -> ImageClassifier:
        options = {name: getattr(self, name) for name in MODEL_OPTIONS}
        if self.width is not None and float(self.width).is_integer() and abs(self.width) <= MOST_COUNT:
            options["width"] = int(self.width)  # a ResNet counts channels with it
        model = create_model(self.model, num_classes=num_classes, **options)
        if self.saliency_start == "ones":
            for _, layer in dynamic_layers(model):
                layer.generator.reset_to_ones()
        return model

    def load_data(self, data_dir: str | None = None) -> Data:
        """The data set as it is trained on, from another folder if it has moved."""
        return self.augmented(self.load_images(data_dir))

    def load_images(self, data_dir: str | None = None) -> Data:
        """The data set as recipes with the same images share it."""
        return load_data(
            self.data,
            None if self.data == "digits" else data_dir or self.data_dir,  # a folder for several runs is the others'
            image_size=self.image_size,
            label_column=self.label_column,
            workers=self.workers,
            skip_corrupt_images=self.skip_corrupt_images,
        )

    def augmented(self, data: Data) -> Data:
        """The same images, with what this recipe does to those for training."""
        if not self.cutout:
            return data
        if not isinstance(data.train, TensorSplit):
            raise UserError("cutout is for small images that are kept in memory; those of this data set are streamed")
        if self.cutout > min(data.input_size[1:]):
            size = " x ".join(map(str, data.input_size[1:]))
            raise UserError(f"cutout must be no larger than the images, {size} pixels, got {self.cutout}")
        return replace(data, train=data.train.with_cutout(self.cutout))

    @staticmethod
    def from_dict(values: dict[str, Any], source: str) -> "Recipe":
        """From what ``to_dict`` gave; ``source`` says where it was found."""
        return read_values(Recipe, values, f"the recipe of {source}")

    @staticmethod
    def of_run(folder: Path) -> "Recipe | None":
        """What a run was trained by; None for a model that came from elsewhere."""
        values = read_config(folder).get("recipe")
        return Recipe.from_dict(values, str(folder / CONFIG)) if values else None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def list_recipes(pattern: str = "*") -> list[str]:
    """Names of the recipes that come with dgconv and match a shell pattern, such as ``"cifar10_*"``."""
    names = [file.name.removesuffix(".toml") for file in RECIPES.iterdir() if file.name.endswith(".toml")]
    return sorted((name for name in names if fnmatch(name, pattern)), key=lambda name: name.split("_"))


def load_recipe(name: str | Path) -> Recipe:
    """A recipe of ours by name, or one of your own by the path of its TOML file.

    A file holds fields of :class:`Recipe`, those that differ from the defaults, and perhaps a table ``[reported]``.
    """
    values, file = _read(name)
    values.pop("reported", None)
    if "name" in values:
        raise UserError(f"{file}: the key 'name' is not allowed, a recipe is called like its file. Remove it")
    return replace(read_values(Recipe, values, file), name=Path(file).stem)


def reported_of(name: str | Path) -> Reported | None:
    """What the paper reports for a recipe; None where it reports nothing."""
    values, file = _read(name)
    return read_values(Reported, values["reported"], f"{file} [reported]") if "reported" in values else None


def _read(name: str | Path) -> tuple[dict[str, Any], str]:
    """The contents of a recipe file, and how to call the file in a message."""
    if str(name).endswith(".toml"):
        path = Path(name).expanduser()
        try:
            content, file = path.read_bytes(), str(path)
        except FileNotFoundError:
            raise UserError(f"{path}: no such file. Give a .toml file, or a name that 'dgconv recipes' lists") from None
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from None
    elif name in list_recipes():
        file = f"{name}.toml"
        content = (RECIPES / file).read_bytes()
    else:
        unknown = unknown_name("recipe", str(name), list_recipes())
        raise UserError(f"{unknown} 'dgconv recipes' lists all; a file of your own must end in .toml")
    try:
        return tomllib.loads(content.decode()), file
    except ValueError as error:  # not TOML, or not UTF-8
        raise UserError(f"{file} is not a TOML file: {error}") from None
