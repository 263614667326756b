"""Whether a graph out of a file can be run: asked before anything is made of it. Files come from strangers.

The rules of single steps are in :mod:`~dgconv.deploy.rules`; here are those of the whole, and of calls that are left to
torch. What depends on the size of an image is asked when there is one, by :mod:`~dgconv.deploy.run.bounds`.
"""

import inspect
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from ..errors import visible
from .calls import NAMES, Slot, Together, TorchCall
from .graph import BYTE_STEPS, ByteConv, Concat, Conv, Graph, Quantize, Step, Torch, byte_values, values_read
from .rules import problem

MOST_STEPS = 4096
MOST_ARGUMENTS = 1 << 14  # of a call, one within another
MOST_TEXT = 10_000  # characters
LARGEST_NUMBER = 1 << 31  # among the arguments of a call
TEXTS = """
    nearest linear bilinear bicubic trilinear area nearest-exact constant reflect replicate circular none tanh floor
    trunc
"""  # that a call may be given
WRITTEN_TO = ("out", "inplace")  # arguments of a function that tell it to write into what it is given


def why_not(graph: Any) -> str | None:
    """What is wrong with a graph that is to be stored, or was; None where nothing is."""
    try:
        _check_types(graph)
        _check_values(graph)
        _check_bytes(graph)
        for step in graph.steps:
            _check_step(step, graph)
    except _Refused as refused:
        return str(refused)
    return None


class _Refused(Exception):
    """The reason, in words."""


def _check_types(graph: Any) -> None:
    """Checks that every field, of every record, holds what the record says."""
    if type(graph) is not Graph:
        raise _Refused("there is none")
    if not isinstance(graph.steps, list) or len(graph.steps) > MOST_STEPS:
        raise _Refused(f"`steps` must be a list of up to {MOST_STEPS}")
    for record in (graph, *graph.steps):
        for name, kind in _kinds(type(record)) if is_dataclass(record) else ():
            if name != "steps" and not _fits(getattr(record, name), kind):
                raise _Refused(f"`{name}` of {_named(record)} is not what it must be")
    if stray := [step for step in graph.steps if type(step) not in get_args(Step)]:
        raise _Refused(f"a {type(stray[0]).__name__} is no step")


def _kinds(record: Any) -> tuple[tuple[str, Any], ...]:
    if record not in _KINDS:
        hints = get_type_hints(record)
        _KINDS[record] = tuple((field.name, hints[field.name]) for field in fields(record))
    return _KINDS[record]


_KINDS: dict[type, tuple[tuple[str, Any], ...]] = {}  # by record: its fields, and what each holds


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is exactly of a kind: True is no number, and 1 is no fraction."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, str) and value in parts
    if origin is tuple and parts[-1] is not ...:
        return type(value) is tuple and len(value) == len(parts) and all(map(_fits, value, parts))
    if origin is list:
        return type(value) is list and all(_fits(item, parts[0]) for item in value)
    if origin is Callable:
        return type(value) is TorchCall
    if kind is Tensor:
        return type(value) is Tensor
    if kind is str:
        return type(value) is str and len(value) <= MOST_TEXT and visible(value) == value
    if is_dataclass(kind):
        return type(value) is kind and all(_fits(getattr(value, name), part) for name, part in _kinds(kind))
    return type(value) is kind


def _named(record: Any) -> str:
    name = getattr(record, "output", "")
    return f"{type(record).__name__} {visible(name)[:100]!r}" if type(name) is str else type(record).__name__


def _check_values(graph: Graph) -> None:
    """Every value is written once, before it is read; the input is never written."""
    known = {graph.input}
    for step in graph.steps:
        reads = values_read(step)
        if not reads:
            raise _Refused(f"{_named(step)} reads nothing")
        if unknown := [name for name in reads if name not in known]:
            raise _Refused(f"{_named(step)} reads {unknown[0]!r} before it is written")
        if step.output in known:
            raise _Refused(f"{step.output!r} is written twice")
        known.add(step.output)
    if graph.output not in known:
        raise _Refused(f"nothing writes its output {graph.output!r}")


def _check_bytes(graph: Graph) -> None:
    """Steps of bytes read bytes, and all others floats; a network gives floats."""
    found = byte_values(graph)
    for step in graph.steps:
        are_bytes = {name in found for name in values_read(step)}
        takes_bytes = step.output in found if isinstance(step, Concat) else isinstance(step, BYTE_STEPS)
        if are_bytes != {takes_bytes and not isinstance(step, Quantize)}:
            raise _Refused(f"{_named(step)} takes {'bytes' if takes_bytes else 'floats'}, and reads others")
    if graph.output in found:
        raise _Refused(f"its output {graph.output!r} is bytes")


def _check_step(step: Step, graph: Graph) -> None:
    reason = next(_call_problems(step, graph), None) if isinstance(step, Torch) else problem(step)
    if reason is None and isinstance(step, Conv | ByteConv) and step.picks is not None:
        reason = _unread_weights(step, step.picks)
    if reason is not None:
        raise _Refused(f"{_named(step)}: {reason}")


def _unread_weights(step: Conv | ByteConv, picks: list[list[int]]) -> str | None:
    """Weights of channels that a group does not pick are zero, so that it makes no difference to leave them out."""
    for head, picked in enumerate(picks):
        left = torch.ones(step.weight.shape[1], dtype=torch.bool, device="cpu")
        left[picked] = False
        if step.weight[head :: len(picks), left].any():  # NaN, too
            return "`picks` leave out channels that have weights"
    return None


def _call_problems(step: Torch, graph: Graph) -> Iterator[str]:
    call = step.function
    assert isinstance(call, TorchCall)
    if step.may_change_inputs:
        yield "a stored call changes nothing that it is given"
    if type(call.args) is not tuple or type(call.kwargs) is not dict:
        yield "its arguments must be a tuple and a dict"
        return
    leaves = list(_leaves((*call.args, *call.kwargs.values())))
    if len(leaves) > MOST_ARGUMENTS:
        yield f"it has more than {MOST_ARGUMENTS} arguments"
    for leaf in leaves:
        yield from _argument_problems(leaf, len(step.inputs))
    if {leaf.index for leaf in leaves if type(leaf) is Slot} != set(range(len(step.inputs))):
        yield "it does not use all that it reads"
    if type(call.function) is Together:
        yield from _together_problems(call.function, call, step, graph)
        return
    if not any(call.function is known for known in NAMES):
        yield "it calls what no file may name"
        return
    yield from _signature_problems(call)


def _leaves(value: Any) -> Iterator[Any]:
    """What is left when tuples, lists and slices are opened."""
    if type(value) in (tuple, list):
        for item in value:
            yield from _leaves(item)
    elif type(value) is slice:
        yield from (value.start, value.stop, value.step)
    else:
        yield value


def _argument_problems(leaf: Any, inputs: int) -> Iterator[str]:
    if type(leaf) is Slot:
        if type(leaf.index) is not int or not 0 <= leaf.index < inputs:
            yield f"it reads its value number {leaf.index!r}, and has {inputs}"
    elif type(leaf) is int:
        if not -LARGEST_NUMBER <= leaf <= LARGEST_NUMBER:
            yield f"the number {leaf} is too large"
    elif type(leaf) is str:
        if leaf not in TEXTS.split():
            yield f"no stored call is given the text {leaf[:40]!r}"
    elif leaf is not None and type(leaf) not in (bool, float, Tensor):
        yield f"a {type(leaf).__name__} is no argument of a stored call"


def _signature_problems(call: TorchCall) -> Iterator[str]:
    """What is wrong with a call: a function takes no such arguments, or writes into what it is given."""
    try:
        arguments = inspect.signature(call.function).bind(*call.args, **call.kwargs).arguments
    except ValueError:  # a builtin, which has no signature, and takes what it writes to by name alone
        arguments = call.kwargs
    except TypeError as error:
        yield f"it cannot be called so: {error}"
        return
    if any(arguments.get(name) is not None and arguments[name] is not False for name in WRITTEN_TO):
        yield "it would write into what it is given"


def _together_problems(together: Together, call: TorchCall, step: Torch, graph: Graph) -> Iterator[str]:
    if step.output != graph.output or any(step.output in values_read(other) for other in graph.steps):
        yield "several results can only be put together at the end"
    if call.kwargs:
        yield "results are put together by number"
    numbers = list(_numbers(together.result))
    if len(numbers) > MOST_ARGUMENTS or not all(type(n) is int and 0 <= n < len(call.args) for n in numbers):
        yield f"each of the results has a number below {len(call.args)}"


def _numbers(result: Any) -> Iterator[Any]:
    if type(result) in (dict, OrderedDict):
        for key, part in result.items():
            yield from _numbers(part) if type(key) is str else (None,)
    elif type(result) in (tuple, list):
        for part in result:
            yield from _numbers(part)
    else:
        yield result
