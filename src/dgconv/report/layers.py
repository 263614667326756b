"""The table of layers: what each costs, keeps and takes."""

from dataclasses import dataclass
from math import prod

from ..analysis.trained_run import TrainedRun
from ..cost.macs import MacCount
from .layer_times import LayerTimes, measure_layers
from .missing import Missing, attempt
from .network import count_network


@dataclass(frozen=True)
class Layer:
    number: int
    name: str
    kind: str
    shape: str  # of the output
    size: int
    macs: float
    dense_macs: float
    kept_share: float | None
    seconds: float | None
    deciding: float | None  # seconds of it, for a dynamic layer


@dataclass(frozen=True)
class LayerTable:
    layers: list[Layer]
    count: MacCount
    times: LayerTimes | None
    images_recorded: int  # 0: kept shares are those of the options, or of the images that MACs were measured on

    @property
    def shows_kept(self) -> bool:
        return any(layer.kept_share is not None for layer in self.layers)

    @property
    def decides(self) -> bool:
        """Whether any layer takes time to choose its channels."""
        return any(layer.deciding is not None for layer in self.layers)


def layers_of(run: TrainedRun, missing: list[Missing]) -> LayerTable:
    """The table of a run's layers; without weights or data, what follows from the options."""
    count = count_network(run, "paper")
    kept: dict[str, float] = {}
    if run.is_dynamic:
        recording = attempt("kept shares recorded on the test images", lambda: run.recording, missing)
        kept = {name: 1 - layer.pruned_share for name, layer in recording.layers.items()} if recording else {}
    times = attempt("time by layer", lambda: measure_layers(run, {layer.name for layer in count.layers}), missing)
    layers = []
    for number, layer in enumerate(count.layers, start=1):
        time = times.layers.get(layer.name) if times else None
        layers.append(
            Layer(
                number=number,
                name=layer.name,
                kind=layer.kind,
                shape=" × ".join(map(str, layer.output)),
                size=prod(layer.output),
                macs=layer.macs,
                dense_macs=layer.dense_macs,
                kept_share=kept.get(layer.name, layer.kept_share),
                seconds=time.total if time else None,
                deciding=time.deciding if time and time.deciding else None,
            )
        )
    return LayerTable(layers, count, times, run.recording.images if kept else 0)
