"""What the pages only name, DIR, FILE and others, as small things of that name in the folder a page is tried in."""

from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image

from dgconv import deploy
from dgconv.data.cifar_archive import FORMS
from tests.cifar_archives import files_of, write
from tests.compare.test_frontier import STUDY
from tests.models.test_authors import condensenet_state
from tests.tuned_networks import CLASSES, network, pixels_and_labels

ROOT = Path(__file__).resolve().parents[2]
IMAGES = 12  # in each file of CIFAR


def photos_and_archives(folder: Path) -> None:
    """Any data set that a page asks for lies in DIR; the workshop wants each in a folder of its own."""
    for number, (image, label) in enumerate(zip(*pixels_and_labels(90, seed=1), strict=True)):
        place = folder / "DIR/train" / CLASSES[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(place / f"{number}.png")
    for name, classes in (("cifar10", 10), ("cifar100", 100)):
        form = FORMS[name][0]
        for place in (folder / "DIR", folder / "DIR" / name):
            place.mkdir(exist_ok=True)
            write(form, place, files_of(form, classes, IMAGES), "archive")


def network_and_weights(folder: Path) -> None:
    (folder / "net.py").write_text("from tests.tuned_networks import network\n")
    torch.save(network().state_dict(), folder / "FILE")


def checkout(folder: Path) -> None:
    (folder / "checkout/results").mkdir(parents=True)
    (folder / "checkout/README.md").write_text("# Title\n\n<!-- begin: results -->\n<!-- end: results -->\n")


def page(folder: Path) -> None:
    (folder / "page.md").write_text("```sh\necho one\n```\n")


def for_pip(folder: Path) -> None:
    for name in ("constraints.txt", "pyproject.toml", "setup.py", "README.md", "LICENSE", "src"):
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)


def studies(folder: Path) -> None:
    (folder / "reproduce").mkdir()
    (folder / "reproduce/studies").symlink_to(ROOT / "reproduce/studies")
    (folder / "study.toml").write_text(STUDY)


MAKERS: dict[str, Callable[[Path], None]] = {
    "DIR": photos_and_archives,
    "FILE": network_and_weights,
    "pip install": for_pip,
    "--root checkout": checkout,
    "page.md": page,
    "reproduce/studies": studies,
    "model_best.pth.tar": lambda folder: torch.save({"state_dict": condensenet_state()}, folder / "model_best.pth.tar"),
    "tuned/fast": lambda folder: deploy.save(deploy.prepare(network().eval()), folder / "tuned/fast"),
}


def make_stand_ins(folder: Path, code: str) -> None:
    """Those that the code names."""
    for name, make in MAKERS.items():
        if name in code:
            make(folder)
