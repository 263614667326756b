"""What can be cut, and what goes with it."""

import pytest
import torch
from torch import nn

from dgconv.errors import UserError
from dgconv.pruning.channels import find_channel_sets


def sources(model, size=(3, 8, 8)):
    return [channel_set.source.layer for channel_set in find_channel_sets(model, size)]


def test_inside_of_resnet_blocks(network):
    sets = find_channel_sets(network("resnet20"))
    blocks = [f"layer{stage}.{block}" for stage in (1, 2, 3) for block in (0, 1, 2)]
    assert [channel_set.source.layer for channel_set in sets] == [f"{block}.conv1" for block in blocks]
    for block, channel_set in zip(blocks, sets, strict=True):
        parts = {(member.layer.removeprefix(f"{block}."), member.role) for member in channel_set.members}
        assert parts == {("conv1", "filters"), ("bn1", "norm"), ("conv2", "inputs")}


def test_what_is_added_up_is_cut_one_by_one_but_not_the_shortcuts(network):
    sets = find_channel_sets(network("resnet20"), shared="outputs")
    added = {one.source.layer: [m.layer for m in one.having("norm")] for one in sets if one.shared == "outputs"}
    blocks = [f"layer{stage}.{block}" for stage in (1, 2, 3) for block in (0, 1, 2)]
    assert added == {"conv1": ["bn1"]} | {f"{block}.conv2": [f"{block}.bn2"] for block in blocks}
    assert len(sets) == len(added) + 9


def test_norms_in_front_of_their_convolutions_select_what_these_read(network):
    sets = find_channel_sets(network("condensenet20"), shared="inputs")
    selecting = [one.source.layer for one in sets if one.shared == "inputs"]
    assert selecting == ["stages.0.norm1", "stages.1.norm1", "stages.3.norm1", "norm"]
    alone = [one.source.layer for one in sets if one.shared == "left"]
    assert alone == [f"stages.{layer}.conv1" for layer in (0, 1, 3)], "what is concatenated stays whole"
    assert all(one.shared == "left" for one in find_channel_sets(network("resnet20"), shared="inputs"))


def test_depthwise_convolutions_go_with_what_they_read(network):
    sets = {channel_set.source.layer: channel_set for channel_set in find_channel_sets(network("mobilenetv2"))}
    roles = {member.layer: member.role for member in sets["features.2.conv.0.0"].members}
    assert roles == {
        "features.2.conv.0.0": "filters",
        "features.2.conv.0.1": "norm",
        "features.2.conv.1.0": "filters",
        "features.2.conv.1.1": "norm",
        "features.2.conv.2": "inputs",
    }
    assert "features.4.conv.2" not in sets, "an addition joins it with others"
    assert "features.17.conv.2" in sets, "nothing is added to the last stage"
    assert sets["features.18.0"].members[-1].layer == "classifier.1"


def test_concatenated_channels_keep_their_places(network):
    sets = {channel_set.source.layer: channel_set for channel_set in find_channel_sets(network("condensenet20"))}
    members = {member.layer: member.channels for member in sets["stages.0.conv2"].members}
    assert members["stages.1.norm1"].equal(members["stages.0.conv2"] + 16), "behind the stem's 16"
    assert members["classifier"].equal(members["stages.0.conv2"] + 16)


def test_groups_stay_alike(network):
    sets = {channel_set.source.layer: channel_set for channel_set in find_channel_sets(network("condensenet20"))}
    inside = sets["stages.0.conv1"]  # 32 channels, read by four groups of 8
    assert inside.units == 8
    assert inside.source.channels[3].tolist() == [3, 11, 19, 27]


class Branches(nn.Module):
    """Everything that must be left: a shared sum, a sigmoid between layers, an output."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)
        self.gated, self.free, self.out = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 2, 1)

    def forward(self, x):
        return self.out(self.free(self.gated(self.a(x) + self.b(x)).sigmoid()).relu())


def test_what_cannot_be_cut_is_left():
    assert sources(Branches()) == ["free"]
    plain = nn.BatchNorm2d(4, affine=False)
    assert sources(nn.Sequential(nn.Conv2d(3, 4, 1), plain, nn.Conv2d(4, 2, 1))) == [], "it would not be zero"
    assert sources(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))) == ["0"]


def test_needs_to_know_the_input():
    with pytest.raises(UserError, match="give input_size"):
        find_channel_sets(nn.Sequential(nn.Conv2d(3, 4, 1)))


def test_the_model_is_not_touched(network):
    model = network()
    model.train().requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    find_channel_sets(model)
    assert model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
