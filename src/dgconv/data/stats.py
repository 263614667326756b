"""The mean and standard deviation of pixels, known or measured, and normalizing by them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .base import RGB

SAMPLE = 10_000  # images measured at most, enough to be right within about 0.001


class Stats(NamedTuple):
    """Mean and standard deviation of each channel, in units of 0..1 pixels."""

    mean: RGB
    std: RGB

    def normalizer(self, device: torch.device | str) -> Callable[[Tensor], Tensor]:
        """Turns uint8 images on `device` into normalized floats.

        Made once per pass, because copying the constants to an accelerator waits for the work queued there.
        """
        mean, std = (torch.tensor(values, device=device).view(1, 3, 1, 1) for values in self)
        return lambda images: images.float().div_(255).sub_(mean).div_(std)


IMAGENET = Stats((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CIFAR10 = Stats((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR100 = Stats((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))


def measure(images: Tensor) -> Stats:
    """The statistics of uint8 images [N, 3, H, W], from an even sample of them."""
    step = -(-len(images) // SAMPLE)
    pixels = images[::step].float().div_(255)
    std, mean = torch.std_mean(pixels, dim=(0, 2, 3), correction=0)
    std = std.clamp(min=1 / 255)  # a constant channel would divide by zero
    return Stats(_rgb(mean), _rgb(std))


def _rgb(values: Tensor) -> RGB:
    red, green, blue = values.tolist()
    return red, green, blue
