"""What a method is: one record that says everything about it. Whatever lists, names or counts methods reads these.

A method is one file: a layer with ``nn.Conv2d``'s signature, or a way to prune filters, and its record, registered
with :func:`register_method`. It may lie outside this package; importing it is all it takes.
"""

import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from torch import Tensor, nn

from ..errors import UserError
from ..values import Allowed
from .controller import Controller

ConvLayer = Callable[..., nn.Module]  # nn.Conv2d's signature
Convention = Literal["paper", "authors"]
DENSE_ANYWAY = "not faster: computes densely, masks afterwards"


class MacCall(NamedTuple):
    """One call of a layer whose MACs are counted: its input ``[B, C, height, width]`` and output, and how to count."""

    x: Tensor
    out: Tensor
    convention: Convention
    measured: bool  # the input comes from real images


MacRule = Callable[[Any, MacCall], tuple[float, float]]
"""Of a layer and a call: the share it computes of the undivided convolution, and the MACs that come on top."""


class Knob(NamedTuple):
    """The option that sets what a method costs, and the values it may have from the cheapest to the dearest."""

    option: str
    cheapest: float
    dearest: float


@dataclass(frozen=True)
class Option:
    """What can be chosen about a method or a network: an argument of its constructor, which has type and default."""

    name: str
    kind: Any
    default: Any
    help: str
    allowed: Allowed | None = None

    def check(self, value: Any) -> None:
        """Refuse what is out of range; of a choice, what is not among it."""
        if value is None and self.default is None:
            return
        if get_origin(self.kind) is Literal and value not in get_args(self.kind):
            raise UserError(f"`{self.name}` must be {' or '.join(map(repr, get_args(self.kind)))}, got {value!r}")
        if self.allowed is not None:
            self.allowed.check(self.name, value)


@dataclass(frozen=True, eq=False)  # a record is itself; its tables could not be hashed
class Method:
    """All there is to know about a method. ``options`` are arguments of ``make``, each with the range it may have.

    Names of models, settings of recipes, flags, MACs, rows of a comparison, legends and docs are made from it.
    """

    name: str  # resnet20_NAME; of a pruning method, its name
    title: str  # as the literature calls it
    make: Callable[..., Any]  # the layer, or the class that prunes
    options: Mapping[str, Allowed | None]
    how_it_runs: str  # what becomes of the saved MACs
    knob: Knob | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)  # arguments that make the method what it is
    macs: MacRule | None = None
    prunes: bool = False  # filters of a dense network, instead of putting a layer in
    choice_depends_on_image: bool = False
    cost_is_trained: bool = False  # and not set by the knob: a MAC budget must hold it
    cost_needs_zeros: bool = False  # it counts inputs that the layer before has made zero
    in_comparisons: Callable[[float], dict[str, Any]] = lambda budget: {}  # other settings, by the MAC budget
    shared: Callable[[dict[str, Any]], dict[str, Any]] = lambda options: {}  # arguments that a network's layers share
    at_equal_macs: Mapping[str, Any] = field(default_factory=dict)  # settings once the knob is found

    @cached_property
    def choices(self) -> dict[str, Option]:
        """The options by name."""
        return describe_options(self.make, self.options)

    @property
    def cost_options(self) -> set[str]:
        """The options that are set for a MAC budget."""
        return {*self.in_comparisons(1.0), *([self.knob.option] if self.knob else [])}

    def check(self, **values: Any) -> None:
        """Refuse values of options that are out of range; for the constructor of the layer."""
        for name, value in values.items():
            self.choices[name].check(value)


METHODS: dict[str, Method] = {}


def register_method(method: Method) -> Method:
    """Makes a method known by its name."""
    if not re.fullmatch("[a-z0-9]+", method.name):
        raise UserError(f"a method's name is of small letters and digits, for it ends names of models: {method.name!r}")
    METHODS[method.name] = method
    return method


def layer_methods() -> dict[str, Method]:
    """The methods that put a layer in the place of a convolution, by name."""
    return {name: method for name, method in METHODS.items() if not method.prunes}


def pruning_methods() -> dict[str, Method]:
    """The methods that prune filters of a dense network, by name."""
    return {name: method for name, method in METHODS.items() if method.prunes}


def method_of(layer: nn.Module) -> Method | None:
    """The record of a layer's class, or of the nearest class that it is derived from."""
    by_class = {method.make: method for method in reversed(METHODS.values())}
    return next((by_class[kind] for kind in type(layer).__mro__ if kind in by_class), None)


def import_all(package: str, path: Iterable[str]) -> None:
    """Import every module of a package, so that what each of them registers is known."""
    for module in pkgutil.iter_modules(path):
        if not module.name.startswith("_"):
            import_module(f"{package}.{module.name}")


def describe_options(make: Callable[..., Any], allowed: Mapping[str, Allowed | None]) -> dict[str, Option]:
    """Arguments of a constructor, with their types, defaults and what its docstring says of them."""
    constructor: Any = getattr(make, "__init__") if isinstance(make, type) else make  # noqa: B009
    kinds, parameters, words = get_type_hints(constructor), inspect.signature(make).parameters, _described(make)
    return {
        name: Option(name, kinds.get(name, Any), parameters[name].default, words.get(name, ""), limits)
        for name, limits in allowed.items()
    }


def _described(make: Callable[..., Any]) -> dict[str, str]:
    """What the ``Args`` of a docstring say, by argument, as plain words."""
    _, _, section = (inspect.getdoc(make) or "").partition("Args:\n")
    words: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \w)", section.split("\n\n")[0]):
        names, _, text = entry.strip().partition(": ")
        plain = re.sub(r":\w+:`~?([^`]*)`", r"\1", " ".join(text.split())).replace("``", "")
        is_word = plain[1:2].isalpha()  # and not a symbol
        words.update(dict.fromkeys(names.split(", "), plain[:1].upper() + plain[1:] if is_word else plain))
    return words


class MethodLayer(Controller, nn.Module):
    """A convolution with ``nn.Conv2d``'s signature whose method acts during training too.

    The trainer calls the hooks of :class:`~dgconv.layers.controller.Controller` on every one. What they change must be
    a buffer or a parameter, changed in place, so that a checkpoint carries it and a captured CUDA graph sees it.
    """

    normalizes = False
    """True: it holds the batch norm that would follow it, and the backbone leaves its own out."""

    undecayed: tuple[str, ...] = ()
    """Names of parameters that weight decay leaves alone."""

    cost_depends_on_image = False
    """True: how much it computes can only be measured on images."""

    offset: Tensor | None
    """A buffer of some, by which a MAC budget closes all layers alike: the larger, the less is computed."""

    budget_advice = ("another model", "a greater budget")
    """What to change where a budget is out of reach: with all gates closed, and because they stay open."""

    def to_static(self) -> nn.Module:
        """Plain layers that compute what this one computes in eval mode; itself, if that depends on the image."""
        return self
