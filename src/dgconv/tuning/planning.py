"""What to convert, with how many heads and at what rate: decided by time, measured with the kernels of this machine."""

import copy
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from rich.console import Group
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from ..bench.timing import check_threads, threads_restored
from ..deploy.compile.prepare import check
from ..deploy.export.formats import try_images
from ..deploy.precision import Precision, prepare_as
from ..deploy.run.prepared import PreparedModel
from ..errors import UserError
from ..layers import DynamicGroupConv2d
from ..layers.convert import DGCConfig, convert_
from ..layers.gate import check_pruning_rate
from ..layers.mode import evaluating
from ..layers.select import dynamic_layers
from ..models._converted import Converted, convert_as_told_
from ..text import as_text
from ..values import read_values

HEADS = (4, 2, 1)  # the first that pays is taken: the more heads, the more an image can choose
RATES = (0.5, 0.625, 0.75, 0.875)  # that are tried for a target
USUAL_RATE = 0.75
PAYS = 0.97  # of the dense layer's time: less is gained than timings vary
REPEATS = 9
SECONDS = 12.0  # of measuring one rate, at most


@dataclass(frozen=True)
class LayerPlan:
    """One convolution: seconds dense and dynamic by precision, and what becomes of it; ``reason``: why it is left."""

    name: str
    shape: str  # channels and kernel
    dense: dict[str, float]
    dynamic: dict[str, float]
    heads: int | None = None
    pruning_rate: float | None = None
    reason: str = ""

    @property
    def is_converted(self) -> bool:
        return self.heads is not None


@dataclass(frozen=True)
class Plan:
    """What to convert, and what the network is expected to take then. ``print`` it for a table.

    Seconds are of one call with the images it was made with, by precision; ``dense`` those of the network as it is.
    """

    layers: list[LayerPlan]
    dense: dict[str, float]
    expected: dict[str, float]
    decided_by: Precision  # the one whose times decide
    pruning_rate: float
    input_size: tuple[int, ...]
    batch_size: int
    threads: int
    target_speedup: float | None = None
    baseline: float | None = None  # seconds that the target is a multiple of
    notes: list[str] = field(default_factory=list)

    @property
    def converted(self) -> Converted:
        """The layers to make dynamic, as ``create_model(..., converted=...)`` takes them."""
        return {
            layer.name: {"heads": layer.heads, "pruning_rate": layer.pruning_rate}
            for layer in self.layers
            if layer.heads is not None and layer.pruning_rate is not None
        }

    @property
    def is_worth_it(self) -> bool:
        return bool(self.converted)

    @property
    def speedup(self) -> float:
        """Of the whole network, over the baseline, or over its own dense form in float32."""
        return (self.baseline or self.dense["float32"]) / min(self.expected.values())

    @property
    def summary(self) -> str:
        count = len(self.converted)
        if not count:
            return f"not worth converting: none of {len(self.layers)} convolutions is faster as a dynamic one here"
        times = ", ".join(
            f"{precision} {1e3 * self.dense[precision]:.2f} -> {1e3 * self.expected[precision]:.2f} ms"
            for precision in self.dense
        )
        return (
            f"{count} of {len(self.layers)} convolutions become dynamic at rate {self.pruning_rate:g}; "
            f"expected: {times}, {self.speedup:.2f}x"
        )

    def apply_(self, model: nn.Module) -> nn.Module:
        """Converts a network that the plan was made for, in place; all saliencies start at 1."""
        if self.converted:
            convert_as_told_(model, self.converted)
        return model

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any], source: str) -> "Plan":
        """What :meth:`to_dict` gave."""
        layers = [read_values(LayerPlan, layer, f"{source}: layers") for layer in values.get("layers", [])]
        plan = read_values(Plan, {k: v for k, v in values.items() if k != "layers"} | {"layers": []}, source)
        return Plan(**{**vars(plan), "layers": layers})

    def __rich__(self) -> Group:
        precisions = list(self.dense)
        table = Table("convolution", "channels", *[f"{p}, µs" for p in precisions], "heads", "rate", "why not")
        for layer in self.layers:
            times = [_arrow(layer.dense.get(p), layer.dynamic.get(p)) for p in precisions]
            chosen = [str(layer.heads), f"{layer.pruning_rate:g}"] if layer.is_converted else ["", ""]
            cells = [layer.name, layer.shape, *times, *chosen, layer.reason]
            table.add_row(*map(Text, cells), style="" if layer.is_converted else "dim")
        return Group(table, Text(self.summary), *map(Text, self.notes))

    def __str__(self) -> str:
        return as_text(self)


def _arrow(dense: float | None, dynamic: float | None) -> str:
    if dense is None:
        return ""
    return f"{1e6 * dense:.0f}" + ("" if dynamic is None else f" -> {1e6 * dynamic:.0f}")


def plan(
    model: nn.Module,
    example: Tensor,
    *,
    target_speedup: float | None = None,
    pruning_rate: float | None = None,
    precision: Precision | Sequence[Precision] = ("float32", "int8"),
    threads: int = 1,
    baseline: float | None = None,
) -> Plan:
    """What to convert in a network so that it becomes faster here, measured layer by layer; nothing is changed.

    The network is run as :func:`dgconv.deploy.prepare` makes it, dense and with dynamic layers of several numbers of
    heads, and each step of it is timed. A layer is converted where that is faster, with as many heads as pay; where it
    is not, the plan says so. Its accuracy is for a training to show: see :func:`dgconv.tune`.

    Args:
        model: in eval mode, float32, on the CPU.
        example: images as it will be called with, [batch, channels, height, width].
        target_speedup: the whole network's; the least rate is taken that reaches it, if any does.
        pruning_rate: share of the input channels each head leaves out; default 3/4, or what the target needs.
        precision: the kernels that are timed; the faster ones decide.
        threads: to time with.
        baseline: seconds that the target is a multiple of; default those of the dense network in float32.
    """
    check(model)
    if not isinstance(example, Tensor) or example.dim() != 4 or not len(example) or example.dtype != torch.float32:
        raise UserError("`example` must be a float32 tensor of images, [batch, channels, height, width]")
    check_threads((threads,))
    if target_speedup is not None and not target_speedup > 0:
        raise UserError(f"`target_speedup` must be above 0, got {target_speedup:g}")
    if target_speedup is not None and pruning_rate is not None:
        raise UserError("give a `target_speedup` or a `pruning_rate`, not both: the one follows from the other")
    if pruning_rate is not None:
        check_pruning_rate(pruning_rate)
    try_images(model, example)
    precisions: tuple[Precision, ...] = (precision,) if isinstance(precision, str) else tuple(precision)
    rates = RATES if target_speedup is not None else (pruning_rate if pruning_rate is not None else USUAL_RATE,)
    with threads_restored(), torch.no_grad():
        torch.set_num_threads(threads)
        layers = _Timed(model, example, precisions)
        found: Plan | None = None
        for rate in rates:
            found = _decide(layers, rate, target_speedup, baseline, threads)
            if target_speedup is None or found.speedup >= target_speedup:
                break
    assert found is not None
    if target_speedup is not None and found.speedup < target_speedup:
        found.notes.append(
            f"a speed-up of {target_speedup:g} is out of reach here: {found.speedup:.2f} is what can be expected at "
            f"rate {found.pruning_rate:g}, and that is planned"
        )
    return found


class _Timed:
    """The steps of a network timed as it is, and with dynamic layers as they are asked for."""

    def __init__(self, model: nn.Module, example: Tensor, precisions: tuple[Precision, ...]) -> None:
        self.model, self.example = model, example
        self.convolutions = {n: m for n, m in model.named_modules() if isinstance(m, nn.Conv2d | DynamicGroupConv2d)}
        if not self.convolutions:
            raise UserError(f"{type(model).__name__} has no convolutions, so there is nothing to convert")
        self.notes: list[str] = []
        self.dense: dict[Precision, PreparedModel] = {}
        for precision in precisions:
            try:
                self.dense[precision] = prepare_as(model, precision, example, example=example)
            except UserError as error:
                if precision == "float32":
                    raise
                self.notes.append(f"{precision} is left out: {error}")
        if not self.dense:
            self.dense["float32"] = prepare_as(model, "float32", example=example)
        self.reasons: dict[str, str] = {}

    def with_heads(self, heads: int, rate: float) -> dict[Precision, PreparedModel]:
        """The network with every layer dynamic that can be."""
        model = copy.deepcopy(self.model)
        config = DGCConfig(heads=heads, pruning_rate=rate)
        first = next(iter(self.convolutions))
        _, channels, height, width = self.example.shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            report = convert_(
                model,
                config,
                lambda name, conv: name != first or "first convolution",
                input_size=(channels, height, width),
            )
            replaced = {row.name for row in report.replaced}
            for name, layer in dynamic_layers(model):
                if name in replaced and isinstance(layer, DynamicGroupConv2d):
                    layer.generator.calm()  # images choose; of saliencies that are all 1, each keeps the same channels
        self.reasons |= {row.name: row.reason for row in report.left if heads == HEADS[-1] or row.name == first}
        self.can = replaced
        with evaluating(model):
            return {
                precision: prepare_as(model, precision, self.example, example=self.example) for precision in self.dense
            }

    def times(self, forms: Mapping[Any, PreparedModel]) -> dict[Any, dict[str, float]]:
        """Median seconds of each convolution by its name, and of the whole call as "", interleaved."""
        calls: dict[Any, list[dict[str, float]]] = {key: [] for key in forms}
        for form in forms.values():
            form(self.example)
        for _ in range(REPEATS):
            for key, form in forms.items():
                form(self.example)
                calls[key].append(self._once(form))
        return {
            key: {name: statistics.median(one.get(name, 0.0) for one in found) for name in {*found[0]}}
            for key, found in calls.items()
        }

    def _once(self, form: PreparedModel) -> dict[str, float]:
        found = {"": 0.0}
        for step in form.time_by_step(self.example):
            found[""] += step.total
            names = [part for part in step.label.split(" + ") if part in self.convolutions]
            for name in names:
                found[name] = found.get(name, 0.0) + step.total / len(names)
        return found


def _decide(layers: _Timed, rate: float, target_speedup: float | None, baseline: float | None, threads: int) -> Plan:
    """The plan at one rate."""
    forms: dict[tuple[Precision, int], PreparedModel] = {(p, 0): form for p, form in layers.dense.items()}
    possible: dict[int, set[str]] = {}
    for heads in HEADS:
        forms |= {(precision, heads): form for precision, form in layers.with_heads(heads, rate).items()}
        possible[heads] = layers.can
    times = layers.times(forms)
    precisions = list(layers.dense)
    decided_by = min(precisions, key=lambda p: min(times[p, heads][""] for heads in (0, *HEADS)))
    rows: list[LayerPlan] = []
    for name, conv in layers.convolutions.items():
        dense: dict[str, float] = {p: times[p, 0][name] for p in precisions if name in times[p, 0]}
        shape = f"{conv.in_channels} -> {conv.out_channels}, {'x'.join(map(str, conv.kernel_size))}"
        chosen_heads, reason = _pick(name, dense, times, possible, decided_by, layers.reasons)
        shown = chosen_heads or next((h for h in HEADS if name in possible[h]), None)
        dynamic = {p: times[p, shown][name] for p in precisions if shown and name in times[p, shown]}
        chosen = {"heads": chosen_heads, "pruning_rate": rate} if chosen_heads else {}
        rows.append(LayerPlan(name, shape, dense, dynamic, reason=reason, **chosen))  # type: ignore[arg-type]
    whole: dict[str, float] = {p: times[p, 0][""] for p in precisions}
    gained = {
        p: sum(row.dense[p] - row.dynamic[p] for row in rows if row.is_converted and p in row.dynamic) for p in whole
    }
    return Plan(
        layers=rows,
        dense=whole,
        expected={p: whole[p] - gained[p] for p in whole},
        decided_by=decided_by,
        pruning_rate=rate,
        input_size=tuple(layers.example.shape[1:]),
        batch_size=len(layers.example),
        threads=threads,
        target_speedup=target_speedup,
        baseline=baseline,
        notes=list(layers.notes),
    )


def _pick(
    name: str,
    dense: Mapping[str, float],
    times: Mapping[tuple[Precision, int], Mapping[str, float]],
    possible: Mapping[int, Iterable[str]],
    by: Precision,
    reasons: Mapping[str, str],
) -> tuple[int | None, str]:
    """As many heads as pay; or none, and why."""
    there = [heads for heads in HEADS if name in possible[heads]]
    if not there:
        return None, reasons.get(name, "cannot be made dynamic")
    if by not in dense:
        return None, "a part of the network that Python runs, where it is not timed by itself"
    for heads in there:
        if times[by, heads].get(name, float("inf")) < PAYS * dense[by]:
            return heads, ""
    best = min(times[by, heads].get(name, float("inf")) for heads in there)
    return None, f"not faster: {1e6 * dense[by]:.0f} µs would be {1e6 * best:.0f}"
