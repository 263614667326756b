"""A recipe: everything that decides how a network is trained."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..data import Data, load_data
from ..errors import UserError
from ..models import ImageClassifier, create_model
from ..models.storage import read_config
from .losses import LassoReading

MODEL_OPTIONS = (
    "pruning_rate", "heads", "squeeze", "groups", "stages", "growth", "width", "downsample", "stem_stride",
)  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """The defaults train a small CondenseNet-DGC on the embedded digits with the paper's method."""

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

    pruning_rate: float | None = None
    """Share of the input channels each head leaves out at the end; default as reported for the model."""
    heads: int | None = None
    """Heads of each dynamic layer."""
    squeeze: int | None = None
    """Squeeze of the saliency generator."""
    groups: int | None = None
    """Groups of a _sgc model."""
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

    epochs: int = 30
    batch_size: int = 64
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    lasso_weight: float = 1e-5
    """Weight lambda of the lasso loss."""
    lasso: LassoReading = "authors"
    """How the lasso is summed, see dgconv.train.lasso_loss."""
    angle_weight: float | None = None
    """Weight of the angle loss; default 1e-4 with the global threshold, otherwise 0."""
    threshold_every: int = 3
    """Epochs between updates of the global threshold."""
    threshold_batches: int = 5
    """Iterations whose saliencies an update looks at."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "threshold_every", "threshold_batches"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("learning_rate", "momentum", "weight_decay", "lasso_weight"):
            if not getattr(self, name) >= 0:
                raise UserError(f"{name} must not be negative, got {getattr(self, name)}")

    def build_model(self, num_classes: int) -> ImageClassifier:
        options = {name: getattr(self, name) for name in MODEL_OPTIONS}
        return create_model(self.model, num_classes=num_classes, **options)

    def load_data(self, data_dir: str | None = None) -> Data:
        """The data set, from another folder if it has moved."""
        return load_data(
            self.data, data_dir or self.data_dir, image_size=self.image_size, label_column=self.label_column
        )

    @staticmethod
    def of_run(folder: Path) -> "Recipe | None":
        """What a run was trained by; None for a model that came from elsewhere."""
        values = read_config(folder).get("recipe")
        try:
            return Recipe(**values) if values else None
        except TypeError as error:
            raise UserError(f"the recipe of {folder} cannot be read: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
