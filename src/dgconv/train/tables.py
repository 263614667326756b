"""The tables of a recipe: the model, the data, the training. What each setting may be, and whom it matters to.

Options of the model stand in the records of its backbone and of its method.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple

import torch

from ..data import Data, DataFacts, load_data, look_at_data
from ..data.encoded_split import EncodedSplit
from ..data.held_photos import HeldPhotos, hold_photos
from ..data.tensor_split import TensorSplit
from ..errors import UserError
from ..models import ImageClassifier
from ..models._registry import build_model, options_of
from ..pruning.base import check_amount
from ..values import (
    BELOW_ONE,
    BETWEEN,
    COUNT,
    FACTOR,
    MOST_COUNT,
    POSITIVE,
    SHARE,
    Allowed,
    check_option,
    whole,
)  # fmt: skip
from .losses import LassoReading
from .schedule import WARM_UP_END

MOST_SEED = 2**32  # of it times a million an epoch's order is drawn, and torch takes no more than 64 bits
Precision = Literal["float32", "bfloat16"]


class Setting(NamedTuple):
    """What is to be known about a field of a table, besides its type and default."""

    help: str
    allowed: Allowed | None
    changes_result: bool  # by more than its noise: runs that differ in it are no seeds of each other
    may_differ_on_resume: bool


def setting(
    default: Any,
    help: str,
    allowed: Allowed | None = None,
    *,
    changes_result: bool = True,
    may_differ_on_resume: bool = False,
) -> Any:
    about = Setting(help, allowed, changes_result, may_differ_on_resume)
    return field(default=default, metadata={"setting": about})


class _Table:
    def __post_init__(self) -> None:
        for part in fields(self):  # type: ignore[arg-type]
            value, about = getattr(self, part.name), part.metadata["setting"]
            is_left_out = value is None and part.default is None
            if about.allowed and not is_left_out:
                about.allowed.check(part.name, value)


@dataclass(frozen=True)
class DataTable(_Table):
    """What a network is trained on."""

    name: str = setting("digits", "Data set: digits, cifar10, cifar100, parquet or folder.")
    dir: str | None = setting(
        None, "Folder of the data set; the digits need none.", changes_result=False, may_differ_on_resume=True
    )
    image_size: int | None = setting(None, "Side of the images, for data sets that are resized.", whole(1, 1_000_000))
    label_column: str | None = setting(None, "Column to take the labels from, in Parquet files that have several.")
    workers: int | None = setting(
        None,
        "Processes that decode large images; default one a core, at most 8.",
        whole(0, 1000, hint="; 0 decodes without worker processes"),
        changes_result=False,
        may_differ_on_resume=True,
    )
    skip_corrupt_images: bool = setting(
        False,
        "Name corrupt images in a warning and go on without them, instead of stopping at the first.",
        may_differ_on_resume=True,  # a run that one of them stopped can go on without it
    )
    in_memory: bool = setting(
        False,
        "Decode photos once, a little larger than the images, and keep them in memory; crops are cut out of those.",
    )
    test_share: float | None = setting(
        None, "Share of the training images to test on instead, of a folder that has no test images.", BETWEEN
    )
    cutout: int = setting(
        0,
        "Side in pixels of a square that is blanked in each training image, for small images that are kept in memory.",
        whole(0, hint="; 0 blanks nothing"),
    )
    smallest_crop: float | None = setting(
        None,
        "Share of a photo that a training crop covers at least; default 0.08.",
        SHARE,
    )

    def load(self, data_dir: str | None = None) -> Data:
        """The data set as it is trained on, from another folder if it has moved."""
        return self.augmented(self.load_images(data_dir))

    def facts(self) -> DataFacts:
        """The facts of the data set, as far as they are known without reading it."""
        return look_at_data(
            self.name,
            self.dir,
            image_size=self.image_size,
            label_column=self.label_column,
            skip_corrupt_images=self.skip_corrupt_images,
            test_share=self.test_share,
        )

    def load_images(self, data_dir: str | None = None) -> Data:
        """The data set as tables with the same images share it."""
        data = load_data(
            self.name,
            None if self.name == "digits" else data_dir or self.dir,  # a folder for several runs is the others'
            image_size=self.image_size,
            label_column=self.label_column,
            workers=self.workers,
            skip_corrupt_images=self.skip_corrupt_images,
            test_share=self.test_share,
        )
        return hold_photos(data) if self.in_memory else data

    def augmented(self, data: Data) -> Data:
        """The same images, with what this recipe does to those for training."""
        if self.smallest_crop is not None:
            if not isinstance(data.train, EncodedSplit | HeldPhotos):
                raise UserError("`smallest_crop` is for photos; the images of this data set are small")
            data = replace(data, train=data.train.with_smallest_crop(self.smallest_crop))
        if not self.cutout:
            return data
        if not isinstance(data.train, TensorSplit):
            raise UserError("`cutout` is for small images that are kept in memory; those of this data set are streamed")
        if self.cutout > min(data.input_size[1:]):
            size = " x ".join(map(str, data.input_size[1:]))
            raise UserError(f"`cutout` must be no larger than the images, {size} pixels, got {self.cutout}")
        return replace(data, train=data.train.with_cutout(self.cutout))


@dataclass(frozen=True)
class TrainingTable(_Table):
    """How a network is trained."""

    init_from: str | None = setting(
        None, "Run folder, or safetensors file, with trained weights of the same network to start from, to prune it."
    )
    epochs: int = setting(30, "Passes over the training images.", COUNT)
    batch_size: int = setting(64, "Images a step.", COUNT)
    learning_rate: float = setting(0.1, "At the start; it falls to 0 along half a cosine.", FACTOR)
    momentum: float = setting(0.9, "Nesterov momentum of SGD.", BELOW_ONE)
    weight_decay: float = setting(1e-4, "Weight decay of SGD.", FACTOR)
    label_smoothing: float = setting(0.0, "Share of each label that is spread over all classes.", BELOW_ONE)
    ramp_end: float = setting(
        0.75,
        "Where in the training, from 0 to 1, the full pruning rate is reached; it rises from 1/12 on.",
        Allowed(lambda value: WARM_UP_END < value <= 1, "above 1/12, where pruning begins, and up to 1"),
    )
    generator_weight_decay: float | None = setting(
        None, "Weight decay of the saliency generators, if not that of all other weights.", FACTOR
    )
    generator_shrinkage: float | None = setting(
        None,
        "Instead: how often it divides them by e in the whole training, if there are any; the paper's on CIFAR: 5.9.",
        Allowed(lambda value: 0 <= value <= 1000, "a number from 0 to 1000"),
    )
    teacher: str | None = setting(
        None, "Run folder, or published network, whose answers are imitated beside learning the labels (distillation)."
    )
    distillation_weight: float = setting(1.0, "Weight of imitating the teacher; that of the labels is 1.", FACTOR)
    distillation_temperature: float = setting(
        2.0, "By what logits are divided before they are compared with the teacher's.", POSITIVE
    )
    clip_gradients: float | None = setting(
        None,
        "Largest norm of all gradients together; larger ones are scaled down to it.",
        POSITIVE._replace(hint="; leave it out to clip nothing"),
    )
    lasso_weight: float = setting(1e-5, "Weight lambda of the lasso loss.", FACTOR)
    lasso: LassoReading = setting("authors", "How the lasso is summed, see dgconv.train.lasso_loss.")
    angle_weight: float | None = setting(
        None, "Weight of the angle loss; default 1e-4 with the global threshold, otherwise 0.", FACTOR
    )
    balance_weight: float = setting(
        0.0,
        "Weight of a loss that lets the channels of a head share its saliencies evenly; not the paper's.",
        FACTOR,
    )
    freeze_choice: float | None = setting(
        None,
        "Where in the training, from 0 to 1, each head settles on the channels it keeps on average; images decide by "
        "how much from then on. Ours, not the paper's.",
        SHARE,
    )
    threshold_every: int = setting(3, "Epochs between updates of the global threshold.", COUNT)
    threshold_momentum: float = setting(
        1.0,
        "Share of a newly found global threshold in the one in force, as in a batch norm's running mean; 1: all of it.",
        SHARE,
    )
    threshold_share: Literal["saliencies", "macs"] = setting(
        "saliencies", "What the pruning rate is a share of, with the global threshold."
    )
    threshold_batches: int = setting(5, "Iterations whose saliencies an update looks at.", COUNT)
    mac_budget: float | None = setting(
        None,
        "MACs to hold a model to, as a share of the dense model's, where what it costs comes out of training.",
        SHARE,
    )
    precision: Precision = setting("float32", "bfloat16: the forward pass in mixed precision.")
    compile: bool = setting(
        False,
        "Train through torch.compile: minutes to start, faster steps.",
        changes_result=False,
        may_differ_on_resume=True,
    )
    checkpoint_minutes: float = setting(
        5.0,
        "Minutes between checkpoints; there is one after each epoch as well.",
        FACTOR,
        changes_result=False,
        may_differ_on_resume=True,
    )
    seed: int = setting(0, "Decides all that is random.", whole(-MOST_SEED, MOST_SEED), changes_result=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.generator_shrinkage is not None and not self.learning_rate:
            raise UserError(f"`generator_shrinkage` needs a learning rate above 0, got {self.learning_rate}")
        if self.generator_shrinkage is not None and self.generator_weight_decay is not None:
            raise UserError(
                "`generator_shrinkage` and `generator_weight_decay` say the same thing; give one of them, and None for "
                f"the other, got {self.generator_shrinkage} and {self.generator_weight_decay}"
            )

    @property
    def autocast_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.precision == "bfloat16" else torch.float32


@dataclass(frozen=True)
class ModelTable:
    """What is trained: a model by name, and those of its options that differ from the default."""

    name: str = "condensenet20_dgc"
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = {name: value for name, value in self.options.items() if value is not None}
        object.__setattr__(self, "options", given)
        check_amount(given.get("prune_rate"), given.get("prune_budget"))
        if "prune" not in given and given.keys() & {"prune_rate", "prune_budget"}:
            raise UserError("`prune_rate` and `prune_budget` say how much to prune; say also how, with `prune`")

    def check(self) -> None:
        """Refuse options that the model has not, or that it cannot take; before anything is built."""
        known = options_of(self.name)
        for name, value in self.options.items():
            if name not in known:
                raise UserError(f"{self.name} has no option {name!r}. It takes {', '.join(sorted(known))}")
            check_option(self._as_taken(name, value), known[name].kind, f"`{name}`")

    def build(self, num_classes: int) -> ImageClassifier:
        options = {name: self._as_taken(name, value) for name, value in self.options.items()}
        return build_model(self.name, num_classes=num_classes, **options)

    def _as_taken(self, name: str, value: Any) -> Any:
        """A whole number where channels are counted, which a flag for any width cannot tell from others."""
        is_whole = isinstance(value, float) and value.is_integer() and abs(value) <= MOST_COUNT
        kind = options_of(self.name)[name].kind if is_whole and name in options_of(self.name) else None
        return int(value) if kind is int else value
