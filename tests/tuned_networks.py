"""A small network, and a few images that it can learn, for what makes networks fast."""

import torch
from torch import nn

from dgconv.data import Stats, TensorSplit
from dgconv.data.base import Data

CLASSES = ["dark", "grey", "bright"]
SIZE = 12


def network(num_classes=3, width=16):
    def conv(channels, out, stride):
        return nn.Sequential(nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())

    return nn.Sequential(
        conv(3, width, 1),
        conv(width, 2 * width, 2),
        conv(2 * width, 2 * width, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, num_classes),
    )


def pixels_and_labels(images, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(images) % len(CLASSES)
    noise = torch.randint(0, 60, (images, 3, SIZE, SIZE), generator=generator)
    return (noise + 80 * labels.view(-1, 1, 1, 1)).clamp(0, 255).to(torch.uint8), labels


def shades(train=96, test=48):
    grey = (0.5,) * 3, (0.25,) * 3
    splits = [
        TensorSplit(*pixels_and_labels(count, seed), Stats(*grey), pad=1, flip=True)
        for seed, count in enumerate((train, test))
    ]
    return Data("shades", *splits, CLASSES, (3, SIZE, SIZE), *grey)


def trained_network(data, epochs=4):
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for epoch in range(epochs):
        for x, y in data.train.batches(16, train=True, generator=torch.Generator().manual_seed(epoch)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model.eval()


def of_norms(rows):
    """The error once batch norms were measured anew, or left as they were where that was worse."""
    (error,) = [error for what, error in rows.items() if what.startswith("batch norms")]
    return error
