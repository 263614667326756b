"""Distillation (Hinton et al. 2015): a network learns from the answers of another one beside the labels."""

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import Data
from ..errors import UserError
from ..layers.controller import Controller
from ..models import ImageClassifier, load_model
from ..models.pretrained import find_run


class Distillation(Controller):
    r"""Adds to the loss of a step how far the network's answers are from a teacher's.

    .. math:: w T^2 \, \mathrm{KL}\left(\mathrm{softmax}(t / T) \,\Vert\, \mathrm{softmax}(s / T)\right)

    with the logits s and t of network and teacher, a mean over the images. The factor T² keeps gradients as large as
    those of the labels, whatever the temperature T.

    Args:
        teacher: any network that gives as many logits; it is put into eval mode and never changed.
    """

    def __init__(self, teacher: nn.Module, weight: float = 1.0, temperature: float = 2.0) -> None:
        self.teacher = teacher.eval().requires_grad_(False)
        self.weight, self.temperature = weight, temperature
        self.distance: Tensor | None = None  # of the step under way

    def see(self, images: Tensor, labels: Tensor, logits: Tensor) -> None:
        device = images.device.type
        with torch.no_grad(), torch.autocast(device, logits.dtype, enabled=logits.dtype != torch.float32):
            answers = self.teacher(images)
        mine, theirs = (F.log_softmax(x.float() / self.temperature, dim=1) for x in (logits, answers))
        self.distance = F.kl_div(mine, theirs, reduction="batchmean", log_target=True)

    def penalty(self, saliencies: Sequence[Tensor] = ()) -> Tensor | None:
        distance, self.distance = self.distance, None  # it would keep the graph of the step alive
        return None if distance is None else self.weight * self.temperature**2 * distance


def load_teacher(source: str, data: Data) -> ImageClassifier:
    """The network that a recipe names as teacher, if it tells the same classes apart in the same images."""
    run = find_run(Path(source))
    teacher = load_model(run)
    classes = run.config.get("classes")
    if classes is not None and list(classes) != list(data.classes):
        raise UserError(
            f"the teacher {source} was trained on other classes ({', '.join(classes[:4])}, ...) than those of "
            f"{data.name} ({', '.join(data.classes[:4])}, ...). Name one that was trained on this data set"
        )
    try:
        with torch.no_grad():
            logits = teacher(torch.zeros(2, *data.input_size))
    except (RuntimeError, ValueError) as error:
        size = " x ".join(map(str, data.input_size[1:]))
        raise UserError(f"the teacher {source} does not take images of {size} pixels: {error}") from error
    if logits.shape[1] != len(data.classes):
        raise UserError(
            f"the teacher {source} tells {logits.shape[1]} classes apart, {data.name} has {len(data.classes)}"
        )
    return teacher
