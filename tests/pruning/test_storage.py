"""Pruned networks on disk, in both forms."""

import json

import pytest
import torch

from dgconv import count_macs, create_model, load_model, save_model
from dgconv.pruning import cut, pruning_of

SMALL = {
    "resnet20": {"width": 8},
    "mobilenetv2": {"width": 0.25, "stem_stride": 1},
    "condensenet20": {"stages": (2, 1), "growth": (8, 12)},
}


@pytest.mark.parametrize("backbone", SMALL)
def test_both_forms_are_loaded_as_they_were_saved(tmp_path, backbone):
    model = create_model(backbone, num_classes=7, prune="l1", prune_rate=0.4, **SMALL[backbone]).eval()
    pruning_of(model).prune(model)
    save_model(model, tmp_path / "whole")
    save_model(cut(model), tmp_path / "cut")
    whole, smaller = load_model(tmp_path / "whole"), load_model(tmp_path / "cut")
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(whole(images), model(images))
    torch.testing.assert_close(smaller(images), model(images), rtol=1e-5, atol=1e-5)
    assert all(map(torch.equal, pruning_of(whole).kept(), pruning_of(model).kept()))
    assert pruning_of(smaller) is None
    assert count_macs(smaller).macs < count_macs(whole).macs
    config = json.loads((tmp_path / "cut" / "config.json").read_text())["model"]
    assert set(config) == {"name", "num_classes", "widths", *SMALL[backbone]}
    save_model(smaller, tmp_path / "again")
    assert torch.equal(load_model(tmp_path / "again")(images), smaller(images)), "what was loaded can be saved"


def test_a_cut_network_can_be_pruned_again():
    model = create_model("resnet20", prune="l1", prune_rate=0.5, width=8).eval()
    pruning_of(model).prune(model)
    again = create_model(**cut(model).config, prune="fpgm", prune_rate=0.5)
    pruning_of(again).prune(again)
    assert cut(again).layer1[0].conv1.out_channels == 2
