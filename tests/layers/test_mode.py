"""What looks at a network in evaluation mode leaves every module of it in its own mode."""

from contextlib import suppress

import pytest
import torch

from dgconv import DynamicGroupConv2d, count_macs, create_model
from dgconv.analysis.budget import run_at_rate
from dgconv.analysis.rate import calibration_images, set_rate
from dgconv.data import load_data
from dgconv.deploy import export_model, prepare
from dgconv.errors import UserError
from dgconv.layers.mode import evaluating
from dgconv.train import evaluate

LOOKS = {
    "count_macs": lambda model, data, folder: count_macs(model, data.input_size),
    "evaluate": lambda model, data, folder: evaluate(model, data.test),
    "set_rate": lambda model, data, folder: set_rate(model, 0.5, calibration_images(data.train)),
    "run_at_rate": lambda model, data, folder: run_at_rate(model, data.test, 0.5, calibration_images(data.train)),
    "export_model": lambda model, data, folder: export_model(model, folder / "net.pt2", "torch", data.input_size),
}


@pytest.fixture
def fine_tuned():
    """Under training, but for a batch norm that is frozen."""
    model = create_model("condensenet20_dgc", stages=(1, 1), growth=(8, 8)).train()
    model.get_submodule("stages.0.norm1").eval()
    return model


def frozen(model):
    return [name for name, module in model.named_modules() if not module.training]


@pytest.mark.slow
@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_what_was_frozen_stays_so(fine_tuned, look, tmp_path):
    look(fine_tuned, load_data("digits", image_size=8), tmp_path)
    assert frozen(fine_tuned) == ["stages.0.norm1"]


@pytest.mark.parametrize(
    "look",
    [
        prepare,
        lambda network: count_macs(network, (8, 4, 4)),
        lambda network: export_model(network, "net.onnx", "onnx", (8, 4, 4)),
    ],
)
def test_a_network_of_torch_export_has_no_modes(look, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    network = torch.export.export(DynamicGroupConv2d(8, 8, 1).eval(), (torch.randn(2, 8, 4, 4),)).module()
    with pytest.raises(UserError, match="give the network that was exported"):
        look(network)


def test_after_an_error_too(fine_tuned):
    with suppress(KeyError), evaluating(fine_tuned):
        assert not any(module.training for module in fine_tuned.modules())
        raise KeyError
    assert frozen(fine_tuned) == ["stages.0.norm1"]
