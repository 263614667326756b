"""Networks that others wrote, as models by name: ``timm:NAME``, ``torchvision:NAME`` and ``FILE.py:FUNCTION``.

So a run folder says what it was trained from, and reads it back. A file of code is never run because a folder says so:
only after :func:`allow` was told of it, by whoever named it.
"""

import copy
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError, unknown_name
from ._classifier import ImageClassifier, make_classifier

LIBRARIES = ("timm", "torchvision")
_DECLARED: list[torch.library.Library] = []  # held, or it would be taken back
GIVEN = "given"  # a network that exists in this process only
INPUT_SIZE = (3, 224, 224)  # of a network that does not say
_ALLOWED: dict[str, Callable[..., nn.Module]] = {}


class OthersNetwork(ImageClassifier):
    """A network that somebody else wrote, as ``network``: whatever takes images and gives logits."""

    num_features = 0

    def __init__(self, network: nn.Module, input_size: tuple[int, int, int]) -> None:
        nn.Module.__init__(self)  # it has a pool of its own
        self.network = network
        self.input_size = input_size
        found = [(name, module) for name, module in network.named_modules() if isinstance(module, nn.Linear)]
        self.classifier_path = f"network.{found[-1][0]}" if found else "network"

    def forward(self, x: Tensor) -> Tensor:
        return first_output(self.network(x))

    def forward_features(self, x: Tensor) -> Tensor:
        if not hasattr(self.network, "forward_features"):
            raise UserError(f"{type(self.network).__name__} has no forward_features")
        features: Any = self.network.forward_features
        return features(x)

    def reset_classifier(self, num_classes: int) -> None:
        """A fresh last linear layer."""
        old = self.get_classifier()
        if not isinstance(old, nn.Linear):
            raise UserError(f"{type(self.network).__name__} has no linear layer whose classes could be changed")
        self.set_submodule(self.classifier_path, make_classifier(old.in_features, num_classes))
        self.config["num_classes"] = num_classes


def first_output(out: Any) -> Tensor:
    """The logits; some networks give those of branches behind them while they are trained."""
    while isinstance(out, tuple | list) and out:
        out = out[0]
    return out


def is_of_others(name: str) -> bool:
    return ":" in name


def allow(name: str, make: Callable[..., nn.Module] | None = None) -> None:
    """Lets networks of this name be made in this process, by a function, or by the code in the file that it names.

    ::

        allow("my_net.py:make_it")            # then load_model reads runs of it
        allow("given:my_net", lambda: MyNet())
    """
    _ALLOWED[name] = make or _function_in_file(name)


def build_of_others(name: str, num_classes: int | None = None) -> OthersNetwork:
    """A network with fresh weights, with so many classes where it can be told."""
    library, _, rest = name.partition(":")
    if library == "timm":
        network, size = _of_timm(rest, num_classes)
    elif library == "torchvision":
        network, size = _of_torchvision(rest, num_classes), INPUT_SIZE
    elif name in _ALLOWED:
        network, size = _call(_ALLOWED[name], name, num_classes), INPUT_SIZE
    else:
        raise UserError(
            f"the network is made by {name}, which is code of somebody's: it is not run because a file names it. "
            f"If you trust it, call dgconv.models.others.allow({name!r}) first, or name it on the command line"
        )
    model = OthersNetwork(network, size)
    model.config = {"name": name, "num_classes": num_classes or model.num_classes}
    return model


def _of_timm(name: str, num_classes: int | None) -> tuple[nn.Module, tuple[int, int, int]]:
    timm = _library("timm")
    if name not in (known := timm.list_models()) and name.partition(".")[0] not in known:
        raise unknown_name("network of timm", name, known)
    try:
        network = timm.create_model(name, pretrained=False, **({"num_classes": num_classes} if num_classes else {}))
    except Exception as error:  # of any kind: it is others' code
        raise UserError(f"timm cannot make {name}: {error}") from error
    size = getattr(network, "pretrained_cfg", {}).get("input_size")
    return network, tuple(size) if size and len(size) == 3 else INPUT_SIZE


def _of_torchvision(name: str, num_classes: int | None) -> nn.Module:
    models = _library("torchvision").models
    if name not in (known := models.list_models(models)):
        raise unknown_name("network of torchvision", name, known)
    try:
        network: nn.Module = models.get_model(
            name, weights=None, **({"num_classes": num_classes} if num_classes else {})
        )
    except Exception as error:
        raise UserError(f"torchvision cannot make {name}: {error}") from error
    return network


def import_library(name: str) -> Any:
    """Imports timm or torchvision.

    torchvision's wheels in the package index expect a CUDA build of torch; beside a CPU build their import stops at an
    operator that is missing. For networks, it is enough that it is declared.
    """
    try:
        return importlib.import_module(name)
    except RuntimeError as error:
        if _DECLARED or "torchvision::nms" not in str(error):
            raise
        _DECLARED.append(torch.library.Library("torchvision", "FRAGMENT"))
        for operator in ("nms", "qnms"):
            _DECLARED[0].define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return importlib.import_module(name)


def _library(name: str) -> Any:
    try:
        return import_library(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise UserError(f"{name} cannot be imported: {error}") from error
        raise UserError(f"networks of {name} need the package {name}; install it with: pip install {name}") from None
    except Exception as error:  # as of a build that does not fit torch
        raise UserError(
            f"{name} cannot be imported: {error}. Install one that fits torch {torch.__version__}"
        ) from error


def _function_in_file(name: str) -> Callable[..., nn.Module]:
    """The function that ``FILE.py:FUNCTION`` names; the file is run."""
    file, _, function = name.rpartition(":")
    path = Path(file).expanduser()
    if not path.is_file():
        raise UserError(f"{file} is no file; name a network of your own as FILE.py:FUNCTION")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))  # what lies beside it can be imported
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # of any kind: it is the user's code
        raise UserError(f"{file} cannot be run: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    made = getattr(module, function, None)
    if not callable(made):
        there = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise unknown_name(f"function of {file}", function, there)
    return made


def _call(make: Callable[..., nn.Module], name: str, num_classes: int | None) -> nn.Module:
    takes_classes = "num_classes" in _parameters(make)
    try:
        network = make(**({"num_classes": num_classes} if takes_classes and num_classes else {}))
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{name} cannot be called: {type(error).__name__}: {error}") from error
    if not isinstance(network, nn.Module):
        raise UserError(f"{name} must return an nn.Module, got a {type(network).__name__}")
    return network


def _parameters(make: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(make).parameters)
    except (TypeError, ValueError):
        return set()


def copies_of(network: nn.Module) -> Callable[[], nn.Module]:
    """A function that gives copies of a network, for :func:`allow`."""
    kept = copy.deepcopy(network).cpu()
    return lambda: copy.deepcopy(kept)
