"""Models prepared for a GPU: in Triton's interpreter, where there is none."""

import os

import pytest
import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="triton is not installed")

from dgconv import DynamicGroupConv2d, create_model  # noqa: E402
from dgconv.deploy import prepare  # noqa: E402
from dgconv.deploy.compile.prepare import graph_of  # noqa: E402
from dgconv.deploy.gpu.branches import Branch  # noqa: E402
from dgconv.deploy.gpu.forms import CUDNN, MASKED, Shape, StemShape, candidates  # noqa: E402
from dgconv.deploy.gpu.model import GpuModel  # noqa: E402
from dgconv.deploy.gpu.order import order_of  # noqa: E402
from dgconv.errors import UserError  # noqa: E402

NETWORKS = {
    "resnet18_dgc": {"width": 8, "stages": (1, 1), "heads": 2},
    "condensenet20_dgc": {"stages": (2, 1), "growth": (4, 8)},
    "mobilenetv2_dgc": {"width": 0.1},
}


def network(name, **options):
    torch.manual_seed(0)
    model = create_model(name, num_classes=5, **options).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.running_mean, std=0.1)
    return model


def on_device(model, dtype=torch.float32):
    with torch.no_grad():
        return GpuModel(graph_of(model), DEVICE, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_computes_what_it_did(name):
    model = network(name, **NETWORKS[name])
    x = torch.randn(2, 3, 16, 24)
    with torch.no_grad():
        expected = model(x)
    out = on_device(model)(x.to(DEVICE)).cpu()
    assert out.dtype == torch.float32
    assert (out - expected).abs().max() <= 1e-3 * expected.abs().max()


def test_masked_and_sparse_forms_agree():
    layer = DynamicGroupConv2d(24, 16, 3, heads=4, pruning_rate=0.7, stride=2, padding=1).eval()
    x = torch.randn(3, 24, 9, 7)
    with torch.no_grad():
        expected = layer(x)
        model = on_device(nn.Sequential(layer, nn.Identity()))
        shape, gate = model._choose(x.to(DEVICE))
        gate_tile = candidates(gate)[0]
        by_way = {form.way: form for form in candidates(shape)[:-1]}
        assert set(by_way) == {"packed", "gathered", "folded", "gated"}
        for form in (MASKED, *by_way.values()):
            out = model._run(x.to(DEVICE), {shape: form, gate: gate_tile})
            torch.testing.assert_close(out.cpu(), expected, rtol=1e-3, atol=1e-3)


def test_channels_lie_by_head_where_they_may():
    model = on_device(network("resnet18_dgc", **NETWORKS["resnet18_dgc"]))
    assert set(model.heads.values()) == {1, 2}
    assert model.heads[model.graph.input] == model.heads[model.graph.output] == 1
    condensenet = on_device(network("condensenet20_dgc", **NETWORKS["condensenet20_dgc"]))
    assert set(condensenet.heads.values()) == {1}  # groups of the 3x3 convolutions follow
    assert order_of(6, 2).tolist() == [0, 2, 4, 1, 3, 5]


def test_branches_whose_result_waits():
    model = on_device(network("resnet18_dgc", width=8, stages=(1, 1, 1), heads=2))
    labels = {model.layers[output].label for output in model._aside}
    assert all("downsample" in label for label in labels)
    assert len(labels) == 2


@pytest.mark.skipif(DEVICE.type != "cuda", reason="branches run side by side on a GPU only")
@pytest.mark.parametrize("batch", [1, 7])
def test_branches_side_by_side_give_the_same(batch):
    model = on_device(network("resnet18_dgc", stages=(1, 1, 1, 1)), torch.bfloat16)
    x = torch.randn(batch, 3, 64, 64, device=DEVICE).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        forms = model._choose(x)
        expected = model._run(x, forms)
        graph, out = model._captured(x, forms, Branch(DEVICE))
    for _ in range(5):
        graph.replay()
        assert torch.equal(out, expected)


def test_forms_fit_their_layers():
    for keep, outputs, size, batch in ((1, 1, 1, 1), (36, 24, 7, 256), (128, 128, 7, 1), (16, 16, 56, 256)):
        forms = candidates(Shape(batch, keep, size, size, outputs, 4, keep, 3, 1, 1, torch.bfloat16, True, True))
        assert forms[-1] == MASKED
        assert all(form.way == "packed" for form in forms[:-1])
        slots = -(-keep // 16) * 16
        assert all(slots % form.depth == 0 for form in forms[:-1])
        assert len(forms) > 1
    forms = candidates(Shape(1, 512, 7, 7, 128, 4, 128, 3, 1, 1, torch.bfloat16, False, True))
    assert max(form.split for form in forms[:-1]) == 8
    forms = candidates(StemShape(256, 3, 224, 224, 64, torch.bfloat16))
    assert forms[-1] == CUDNN
    assert {form.rows for form in forms[:-1]} == {0, 7, 14}
    assert candidates(StemShape(1, 3, 8, 8, 64, torch.bfloat16))[0].rows == 1


def test_a_stem_is_one_layer():
    model = network("resnet18_dgc", **NETWORKS["resnet18_dgc"])
    x = torch.randn(2, 3, 17, 24)
    prepared = on_device(model)
    with torch.no_grad():
        expected = model(x)
        forms = prepared._choose(x.to(DEVICE))
        stem = next(shape for shape in forms if isinstance(shape, StemShape))
        for form in (candidates(stem)[0], candidates(stem)[-2], CUDNN):
            out = prepared._run(x.to(DEVICE), forms | {stem: form}).cpu()
            assert (out - expected).abs().max() <= 1e-3 * expected.abs().max()


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (DynamicGroupConv2d(8, 8, 5, padding=2), "1x1 and 3x3"),
        (DynamicGroupConv2d(8, 8, 3, padding=2, dilation=2), "dilation"),
        (nn.Sequential(nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1, padding_mode="reflect")), "padding_mode"),
    ],
)
def test_what_has_no_kernel_is_refused(layer, message):
    with pytest.raises(UserError, match=message):
        on_device(nn.Sequential(layer, nn.ReLU()).eval())


@pytest.mark.skipif(DEVICE.type == "cuda", reason="there is a GPU")
def test_without_a_gpu_that_is_said():
    model = network("resnet18_dgc", **NETWORKS["resnet18_dgc"])
    with pytest.raises(UserError, match="no GPU"):
        prepare(model, device="cuda")
    with pytest.raises(UserError, match="bfloat16, float16"):
        prepare(model, device="cuda", precision="int8")
    with pytest.raises(UserError, match="cpu or a GPU"):
        prepare(model, device="mps")


def test_a_prepared_model_knows_what_it_takes():
    model = on_device(nn.Sequential(DynamicGroupConv2d(8, 8, 1), nn.ReLU()).eval())
    for wrong in (torch.zeros(8, 4, 4), torch.zeros(0, 8, 4, 4), torch.zeros(1, 8, 4, 4).int()):
        with pytest.raises(UserError):
            model(wrong.to(DEVICE))
    with pytest.raises(UserError, match="does not train"):
        model.train()
