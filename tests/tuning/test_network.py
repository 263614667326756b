"""Networks by what names them: found, filled with weights, and refused with words where they do not fit."""

import pytest
import torch
from torch import nn

from dgconv.errors import UserError
from dgconv.models import create_model, load_model, save_model
from dgconv.models.others import OthersNetwork, allow, copies_of
from dgconv.runs.tensors import to_bytes
from dgconv.tuning.network import fill_, open_network, plain, read_weights
from tests.tuned_networks import CLASSES, network

SIZE = (3, 32, 32)
CODE = """
from torch import nn

def make(num_classes=3):
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, num_classes)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), *head)

def two_inputs():
    class Two(nn.Module):
        def forward(self, image, mask):
            return image
    return Two()

def of_maps():
    return nn.Conv2d(3, 8, 3)

def fails():
    raise ZeroDivisionError("oh")

number = 3
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(CODE)
    return path


def test_a_function_in_a_file(file):
    opened = open_network(f"{file}:make", CLASSES, SIZE)
    assert isinstance(plain(opened.model), nn.Sequential)
    assert opened.model(torch.zeros(1, *SIZE)).shape == (1, 3)
    assert "random" in opened.notes[0]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("mak", "Did you mean 'make'"),
        ("number", "unknown function"),
        ("two_inputs", "needs other inputs than a batch of images"),
        ("of_maps", r"must give logits \[batch, classes\]"),
        ("fails", "ZeroDivisionError: oh"),
    ],
)
def test_what_is_wrong_with_a_function_is_said(file, function, message):
    with pytest.raises(UserError, match=message):
        open_network(f"{file}:{function}", CLASSES, SIZE)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("no/such.py:make", "is no file"),
        ("tim:resnet18", "names no network"),
        ("resnet19", "names no network"),
    ],
)
def test_an_unknown_source(source, message):
    with pytest.raises(UserError, match=message):
        open_network(source, CLASSES, SIZE)


def test_a_model_of_ours_by_name():
    opened = open_network("resnet20", CLASSES, SIZE)
    assert opened.model.num_classes == 3


def test_networks_of_libraries(timm):
    opened = open_network("timm:resnet18", CLASSES, (3, 64, 64))
    assert opened.model.config == {"name": "timm:resnet18", "num_classes": 3}
    with pytest.raises(UserError, match="unknown network of timm 'resnet81'"):
        open_network("timm:resnet81", CLASSES, SIZE)
    with pytest.raises(UserError, match="unknown network of torchvision"):
        open_network("torchvision:resnet81", CLASSES, SIZE)


def test_a_missing_library_is_named(monkeypatch):
    import importlib

    def missing(name):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UserError, match="pip install timm"):
        open_network("timm:resnet18", CLASSES, SIZE)


def test_too_small_images(tmp_path):
    allow("given:small", lambda: nn.Sequential(nn.Conv2d(3, 3, 7), nn.Flatten()))
    with pytest.raises(UserError, match="does not take images of 3 x 4 x 4"):
        open_network("given:small", CLASSES, (3, 4, 4))


# -- weights -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["safetensors", "pt", "checkpoint", "parallel"])
def weights(request, tmp_path):
    """The same weights as people keep them."""
    torch.manual_seed(3)
    state = network().state_dict()
    path = tmp_path / f"weights.{'safetensors' if request.param == 'safetensors' else 'pth'}"
    if request.param == "safetensors":
        path.write_bytes(to_bytes(state))
    elif request.param == "checkpoint":
        torch.save({"state_dict": state, "epoch": 3, "arch": "net"}, path)
    else:
        prefix = "module." if request.param == "parallel" else ""
        torch.save({prefix + name: tensor for name, tensor in state.items()}, path)
    return path, state


def test_weights_as_people_keep_them(weights):
    path, state = weights
    model = network()
    assert not fill_(model, read_weights(path), path, CLASSES, replace_head=False)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_what_does_not_fit_is_listed_by_name(tmp_path):
    path = tmp_path / "weights.pt"
    state = network().state_dict()
    state["extra.weight"] = torch.zeros(3)
    del state["1.0.weight"]
    state["2.0.weight"] = torch.zeros(1, 2, 3, 3)
    torch.save(state, path)
    with pytest.raises(UserError) as error:
        fill_(network(), read_weights(path), path, CLASSES, replace_head=False)
    for words in (
        "missing in the file: 1.0.weight",
        "not in the network: extra.weight",
        "2.0.weight 1x2x3x3 for 32x32",
    ):
        assert words in str(error.value)


def test_other_classes_offer_a_new_head(tmp_path):
    path = tmp_path / "weights.pt"
    torch.save(network(num_classes=7).state_dict(), path)
    allow("given_by_test.py:net", network)
    with pytest.raises(UserError, match=r"tells 7 classes apart, and the data has 3 .* Give `replace_head`"):
        fill_(network(), read_weights(path), path, CLASSES, replace_head=False)
    assert fill_(network(), read_weights(path), path, CLASSES, replace_head=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"nothing of the kind", "neither a safetensors file nor a state dict"),
        (None, "no such file"),
    ],
)
def test_files_that_are_no_weights(tmp_path, content, message):
    path = tmp_path / "weights.pth"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_weights(path)


def test_a_pickle_is_never_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return print, ("run",)

    path = tmp_path / "weights.pth"
    torch.save({"state_dict": network().state_dict(), "args": Trap()}, path)
    with pytest.raises(UserError, match=r"print.* save its state dict alone"):
        read_weights(path)


# -- run folders ---------------------------------------------------------------------------------------------------


def test_a_run_folder(tmp_path):
    save_model(create_model("resnet20", 3), tmp_path / "run", classes=CLASSES)
    assert open_network(str(tmp_path / "run"), CLASSES, SIZE).notes == []
    with pytest.raises(UserError, match="has weights of its own"):
        open_network(str(tmp_path / "run"), CLASSES, SIZE, weights=tmp_path)
    with pytest.raises(UserError, match="which are others"):
        open_network(str(tmp_path / "run"), ["a", "b", "c"], SIZE)
    opened = open_network(str(tmp_path / "run"), ["a", "b", "c", "d"], SIZE, replace_head=True)
    assert opened.has_new_head
    assert opened.model.num_classes == 4


def test_code_is_not_run_because_a_folder_names_it(tmp_path, file):
    model = OthersNetwork(network(), SIZE)
    model.config = {"name": f"{file}:make", "num_classes": 3}
    save_model(model, tmp_path / "run")
    with pytest.raises(UserError, match="not run because a file names it"):
        load_model(tmp_path / "run")


def test_a_converted_network_of_others_is_read_back(tmp_path):
    torch.manual_seed(1)
    allow("given:converted", copies_of(network()))
    from dgconv.models._registry import build_model

    layers = {"network.2.0": {"heads": 2, "pruning_rate": 0.5}}
    model = build_model("given:converted", 3, converted=layers).eval()
    save_model(model, tmp_path / "run")
    again = load_model(tmp_path / "run")
    x = torch.randn(2, *SIZE)
    assert torch.equal(again(x), model(x))
    with pytest.raises(UserError, match="there is no such convolution"):
        build_model("given:converted", 3, converted={"network.9": {"heads": 2, "pruning_rate": 0.5}})
