"""What a run folder says of its network."""

import json

import pytest

from dgconv.analysis.summary import summarize
from dgconv.analysis.trained_run import TrainedRun
from dgconv.train import Recipe, train

TINY = {"width": 4, "image_size": 8, "epochs": 1, "batch_size": 512, "seed": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        {"model": "resnet20", "prune": "l1", "prune_rate": 0.5},
        {"model": "resnet20_flgc", "groups": 4},
        {"model": "resnet20_fbs"},
    ],
    ids=lambda method: method.get("prune", method["model"]),
)
def test_macs_are_those_of_the_trained_network_as_it_runs(method, tmp_path):
    trained = train(Recipe.of(**TINY, **method), tmp_path / "run")
    counted = summarize(trained.model, trained.data, error=0.0, pruning_rate=None)
    run = TrainedRun(tmp_path / "run")
    assert {convention: run.macs(convention).macs for convention in counted.macs} == pytest.approx(counted.macs)
    assert run.macs("paper").macs < 0.9 * counted.dense_macs["paper"]


@pytest.mark.parametrize("rate", [1 / 3, 0.55, 0.6, 0.7, 0.9])
@pytest.mark.parametrize("model", ["resnet20_dgc", "condensenet50_dgc"])
def test_the_trained_rate_is_exact(model, rate, tmp_path):
    """A mean over the layers is off by the last bit, and a rate that differs gives the network other batch norms."""
    (tmp_path / "config.json").write_text(json.dumps({"model": {"name": model, "pruning_rate": rate}}))
    assert TrainedRun(tmp_path).trained_rate == rate
