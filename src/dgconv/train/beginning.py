"""What a run begins with, and what is refused before it does."""

import copy
from pathlib import Path

import torch
from torch import Tensor, nn

from ..data import Data
from ..data.sample import labelled_sample, sample
from ..errors import UserError
from ..layers.select import dynamic_layers
from ..models import ImageClassifier
from ..models.storage import start_from
from ..ops import sparse_training
from ..runs import Checkpoint
from .classes import refuse_other_classes
from .controllers import controllers_of
from .distillation import load_teacher
from .distributed import world_size
from .optimizer import make_optimizer
from .recipe import Recipe
from .run_state import refuse_other_recipe

MEASURED_IMAGES = 128  # on which a MAC budget is kept
FEW_CHANNELS = 16  # from which on oneDNN has them in whole vectors


def refuse_mistakes(recipe: Recipe, folder: Path, data: Data, resume_from: Checkpoint | None) -> None:
    """What :class:`Run` would refuse, without beginning one."""
    refuse_uneven_shares(recipe, data)
    if resume_from:
        refuse_other_recipe(resume_from, recipe, folder)
        refuse_other_classes(resume_from.classes, data, folder)
    model = build_model(recipe, data, is_resumed=resume_from is not None)
    make_optimizer(model, recipe.training, torch.device("cpu"), steps=1)
    controllers_of(model, recipe.training, input_size=data.input_size)
    teacher_of(recipe, data, torch.device("cpu"))


def build_model(recipe: Recipe, data: Data, is_resumed: bool) -> ImageClassifier:
    """The network, after a copy of it has shown that it can be trained on images so small, and so few at a time."""
    model = recipe.build_model(len(data.classes))
    batch_size = recipe.training.batch_size
    few = min(2, batch_size, len(data.train))
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            copy.deepcopy(model).train()(torch.zeros(few, *data.input_size))
    except (RuntimeError, ValueError) as error:
        size = " x ".join(map(str, data.input_size[1:]))
        raise UserError(
            f"{recipe.model.name} cannot be trained on images of {size} pixels in batches of {batch_size}: {error}. "
            "Give a greater `image_size` or `batch_size`"
        ) from error
    if recipe.training.init_from is not None and not is_resumed:
        start_from(model, recipe.training.init_from)
    return model


def memory_format_of(model: ImageClassifier, device: torch.device, dtype: torch.dtype) -> torch.memory_format:
    """In which a network trains fastest: on a CPU with channels last, but for dynamic convolutions of more than a pixel
    in float32, whose kernels work on planes, and for what torch breaks."""
    if device.type == "cuda":
        return model.gpu_memory_format
    wide = any(max(layer.kernel_size) > 1 for _, layer in dynamic_layers(model))
    on_planes = wide and dtype == torch.float32 and sparse_training.is_there()
    return torch.contiguous_format if on_planes or any(map(_breaks, model.modules())) else torch.channels_last


def _breaks(layer: nn.Module) -> bool:
    """Whether torch writes beyond its memory in the layer's backward pass on a CPU with channels last: seen with torch
    2.13, one pixel, a stride of 2, and 3 to 12 channels, as at the beginning of RepVGG."""
    if not isinstance(layer, nn.Conv2d) or layer.kernel_size != (1, 1) or max(layer.stride) == 1:
        return False
    return layer.in_channels // layer.groups < FEW_CHANNELS


def teacher_of(recipe: Recipe, data: Data, device: torch.device) -> ImageClassifier | None:
    if recipe.training.teacher is None:
        return None
    teacher = load_teacher(recipe.training.teacher, data)
    return teacher.to(device=device, memory_format=memory_format_of(teacher, device, torch.float32))  # type: ignore[call-overload]


def images_to_measure(data: Data, device: torch.device) -> Tensor:
    """The same training images after each epoch, as they are."""
    return next(sample(data.train, MEASURED_IMAGES, device=device))


def examples_of(data: Data, device: torch.device) -> tuple[Tensor, Tensor]:
    """The same training images whenever they are asked for, with their labels; all ranks have the same."""
    return next(labelled_sample(data.train, MEASURED_IMAGES, device=device))


def refuse_uneven_shares(recipe: Recipe, data: Data) -> None:
    """Each rank must have as many images of a batch as the others, and where there are fewer, of all there are."""
    batch_size = recipe.training.batch_size
    if batch_size % world_size():
        raise UserError(f"batch size {batch_size} must be a multiple of the {world_size()} processes")
    if min(batch_size, len(data.train)) % world_size():
        raise UserError(
            f"the {len(data.train)} training images do not fill a batch of {batch_size}, and cannot be shared "
            f"evenly by the {world_size()} processes. Give a smaller `batch_size`"
        )
