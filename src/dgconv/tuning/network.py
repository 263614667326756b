"""The network that is to become fast: found by what names it, with its weights, and checked against the data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from ..deploy.compile.prepare import _takes_one_tensor as takes_one_tensor
from ..errors import UserError
from ..models import ImageClassifier, list_models, load_model
from ..models._registry import build_model
from ..models.others import GIVEN, LIBRARIES, OthersNetwork, allow, first_output, is_of_others
from ..models.pretrained import find_run, list_cards
from ..models.torch_files import ForeignObject, StoredTensor, TorchFile, read_all, read_torch_file
from ..pruning import what_is_left
from ..runs.tensors import read_tensors

HOW_TO_NAME = (
    "Name a network as timm:NAME, torchvision:NAME, FILE.py:FUNCTION, a run folder, a published network or a model "
    "that 'dgconv models' lists"
)
WRAPPERS = ("module.", "_orig_mod.", "network.", "model.")  # what others put before the names of weights
INSIDE = ("state_dict", "model_state_dict", "model", "state_dict_ema")  # where a checkpoint has its weights
NAMED = 6  # misfits that are told one by one


@dataclass(frozen=True)
class Opened:
    """A dense network in eval mode on the CPU. ``notes`` say what is to be known of it."""

    model: ImageClassifier
    has_new_head: bool = False  # which is to be trained before anything else
    notes: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)  # that it was trained on, where that is known


def plain(model: nn.Module) -> nn.Module:
    """The network as its author wrote it."""
    return model.network if isinstance(model, OthersNetwork) else model


def open_network(
    source: str,
    classes: Sequence[str],
    input_size: tuple[int, int, int],
    *,
    weights: Path | None = None,
    replace_head: bool = False,
) -> Opened:
    """Finds, builds and fills the network; a ``UserError`` where it does not fit its weights or the data."""
    path = Path(source)
    if path.is_dir() or source in list_cards():
        opened = _of_run(source, weights)
    elif is_of_others(source):
        library = source.partition(":")[0]
        if library not in (*LIBRARIES, GIVEN):
            if not source.rpartition(":")[0].endswith(".py"):
                raise UserError(f"{source!r} names no network. {HOW_TO_NAME}")
            allow(source)
        opened = _fresh(source, classes, weights, replace_head)
    elif source in list_models():
        opened = _fresh(source, classes, weights, replace_head)
    else:
        raise UserError(f"{source!r} names no network. {HOW_TO_NAME}")
    return _with_classes(opened, source, classes, input_size, replace_head)


def _of_run(source: str, weights: Path | None) -> Opened:
    if weights is not None:
        raise UserError(f"{source} has weights of its own. Leave `weights` out")
    run = find_run(Path(source))
    model = what_is_left(load_model(run))
    assert isinstance(model, ImageClassifier)
    return Opened(model, classes=list(run.config.get("classes") or []))


def _fresh(source: str, classes: Sequence[str], weights: Path | None, replace_head: bool) -> Opened:
    torch.manual_seed(0)  # what is not in the weights is the same each time
    model = build_model(source, len(classes))
    if source.startswith(f"{GIVEN}:"):
        return Opened(model)
    if weights is None:
        return Opened(model, notes=["its weights are random: none were given with `weights`"])
    has_new_head = fill_(plain(model), read_weights(weights), weights, classes, replace_head)
    return Opened(model, has_new_head)


def _with_classes(
    opened: Opened, source: str, classes: Sequence[str], input_size: tuple[int, int, int], replace_head: bool
) -> Opened:
    """The network if it tells these classes apart; with a new last layer otherwise, if that may be."""
    model = opened.model.eval()
    own = opened.classes
    are_others = bool(own) and own != list(classes) and not _are_numbers(own, classes)
    count = count_answers(model, input_size)
    has_new_head = opened.has_new_head
    if count != len(classes) or are_others:
        if not replace_head:
            raise _other_classes(source, count, classes)
        torch.manual_seed(0)
        model.reset_classifier(len(classes))
        has_new_head = True
        if (count := count_answers(model.eval(), input_size)) != len(classes):
            raise UserError(f"the last layer of {source} cannot be replaced: it then tells {count} classes apart")
    notes = [f"its last layer is new, for {len(classes)} classes, and is trained first"] if has_new_head else []
    return Opened(model, has_new_head, [*opened.notes, *notes])


def _are_numbers(*names: Sequence[str]) -> bool:
    return any(list(one) == [str(number) for number in range(len(one))] for one in names)


def _other_classes(source: str, count: int, classes: Sequence[str]) -> UserError:
    some = ", ".join(classes[:4]) + (", ..." if len(classes) > 4 else "")
    return UserError(
        f"{source} tells {count} classes apart, and the data has {len(classes)} ({some}), which are others. Give "
        "`replace_head` to put a new last layer in, which is trained first, or name the data that it was trained on"
    )


def count_answers(model: nn.Module, input_size: tuple[int, int, int]) -> int:
    """How many classes a network tells apart. Refuses one that needs other inputs than images, or gives no logits."""
    inner = plain(model)
    name = type(inner).__name__
    if not takes_one_tensor(inner):
        raise UserError(
            f"{name} needs other inputs than a batch of images. Wrap it in a module whose forward takes one tensor "
            "[batch, 3, height, width]"
        )
    size = " x ".join(map(str, input_size))
    try:
        with torch.no_grad():
            out = first_output(model(torch.zeros(2, *input_size)))
    except Exception as error:  # of any kind: it is the user's code
        raise UserError(f"{name} does not take images of {size}: {error}. Give another `image_size`") from error
    if not isinstance(out, Tensor) or out.dim() != 2 or len(out) != 2:
        got = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise UserError(f"{name} must give logits [batch, classes] for a batch of images, got {got}")
    return out.shape[1]


# -- weights -------------------------------------------------------------------------------------------------------


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors by name, of a safetensors file or of a state dict that ``torch.save`` wrote. No code in it is run."""
    try:
        if path.suffix == ".safetensors":
            return read_tensors(path, known=("format",)).tensors
        return read_torch_file(path, _state_of)
    except ForeignObject as error:
        raise UserError(
            f"{path} holds a Python object, {error.name}, that only unsafe unpickling could load. If you trust it, "
            "load it elsewhere and save its state dict alone: torch.save(model.state_dict(), FILE)"
        ) from None
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{path}: no such file. `weights` takes a .safetensors file or a state dict") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(
            f"{path} is neither a safetensors file nor a state dict that torch.save wrote: {str(error)[:100]}"
        ) from None


def _state_of(file: TorchFile) -> dict[str, Tensor]:
    content = file.content
    for key in INSIDE:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict):
        raise UserError("the weights file holds no state dict: expected tensors by name")
    tensors = {str(name): value for name, value in content.items() if isinstance(value, StoredTensor)}
    if not tensors:
        raise UserError(
            f"the weights file holds no state dict, but {', '.join(map(str, list(content)[:6])) or 'nothing'}"
        )
    return read_all(file, tensors)


def fill_(
    network: nn.Module, tensors: Mapping[str, Tensor], path: Path, classes: Sequence[str], replace_head: bool
) -> bool:
    """Puts weights into a network. True if its last linear layer was left as it is, for the classes differ.

    What does not fit is told by name, all of it.
    """
    own = network.state_dict()
    tensors = _unwrapped(tensors, own)
    head = _head_of(network)
    missing = [name for name in own if name not in tensors and not name.endswith("num_batches_tracked")]
    unexpected = [name for name in tensors if name not in own]
    other = {name for name, tensor in own.items() if name in tensors and tensors[name].shape != tensor.shape}
    of_head = {name for name in {*missing, *other} if head and name.rpartition(".")[0] == head}
    problems = [
        _told("missing in the file", [name for name in missing if name not in of_head]),
        _told("in the file, but not in the network", unexpected),
        _told(
            "of another shape",
            [f"{n} {_shape(tensors[n])} for {_shape(own[n])}" for n in own if n in other and n not in of_head],
        ),
    ]
    if told := "; ".join(filter(None, problems)):
        raise UserError(f"{path} does not fit {type(network).__name__}. {told}")
    if of_head and not replace_head:
        there = next((len(tensors[name]) for name in sorted(of_head & other)), 0)
        raise _other_classes(str(path), there, classes)
    network.load_state_dict(
        {name: tensors[name] for name in own if name in tensors and name not in of_head}, strict=False
    )
    return bool(of_head)


def _unwrapped(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights by the network's own names, where all of them stand behind one of the usual words."""
    found = dict(tensors)
    for wrapper in WRAPPERS:
        if not own.keys() & found.keys() and all(name.startswith(wrapper) for name in found):
            found = {name.removeprefix(wrapper): tensor for name, tensor in found.items()}
    return found


def _head_of(network: nn.Module) -> str | None:
    linear = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    return linear[-1] if linear else None


def _told(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{len(names)} {what}: {', '.join(names[:NAMED])}{more}"


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a number"
