"""The native convolution on every instruction set of this CPU, against torch and the reference."""

import os
import random
import shutil
import subprocess
import sys
from ctypes import byref
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from native_conv import Kept, NativeConv2d
from torch import Tensor, nn

from dgconv import deploy
from dgconv.errors import UserError
from dgconv.ops import native
from dgconv.ops.reference import dynamic_group_conv2d_reference

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "src/dgconv/ops/csrc"
FLAGS = {"avx512": "-mavx512f -mavx512vl -mavx512bw -mavx512dq -mavx2 -mfma", "avx2": "-mavx2 -mfma", "portable": ""}
APPLY = {"identity": lambda x: x, "relu": F.relu, "relu6": F.relu6}

needs_library = pytest.mark.skipif(not native.available(), reason="the native kernels were not built")


@pytest.fixture(params=native.FLOAT_ISAS)
def isa(request):
    if not native.available():
        pytest.skip("the native kernels were not built")
    library, before = native.library(), native.isa()
    if not library.dgconv_select_isa(request.param.encode()):
        pytest.skip(f"this CPU lacks {request.param}")
    yield request.param
    library.dgconv_select_isa(before.encode())


def test_more_pixels_than_an_int_counts(isa):
    """A plan is made for them as for others; no image is needed to see that."""
    conv = NativeConv2d(torch.ones(64, 64, 1, 1))
    sizes = [(1 << 14, 1 << 16), (1 << 16, 1 << 16)]
    few, many = (conv.library.dgconv_conv_scratch_floats(byref(conv.conv), *size, *size) for size in sizes)
    assert few == many


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("padding", [(7, 1), (23, 30)])
@pytest.mark.parametrize(("channels", "outputs", "groups"), [(8, 32, 1), (16, 16, 8), (16, 16, 16), (2, 5, 1)])
@pytest.mark.usefixtures("isa")
def test_more_padding_than_an_item_has_rows(channels, outputs, groups, padding, kernel):
    """Some items then see nothing of the image."""
    weight = torch.randn(outputs, channels // groups, kernel, kernel)
    Case(torch.randn(2, channels, 6, 90), weight, groups, padding=padding).check()


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_the_library_is_there_where_it_can_be_built():
    """Else all that follows would be skipped, and nobody would know."""
    assert native.available(), "run `pip install -e .` again"


@dataclass
class Case:
    """A convolution with all that may be fused into it; anything not given is drawn at random."""

    x: Tensor
    weight: Tensor
    groups: int = 1
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    gates: Tensor | None = None  # [B, H, C]: a dynamic convolution
    mask: Tensor | None = None
    interleaved: bool = False
    before: tuple[Tensor, Tensor, str] | None = None
    bias: Tensor | None = None
    with_residual: bool = False
    activation: str = "identity"

    def run(self, residual: Tensor | None, threads: int) -> tuple[Tensor, Tensor]:
        conv = NativeConv2d(
            self.weight,
            self.bias,
            *(self.stride, self.padding, self.dilation, self.groups),
            dynamic=self.gates is not None,
            interleaved=self.interleaved,
            before=self.before,
            activation=self.activation,
        )
        kept = None if self.gates is None else Kept.of(self.gates, self.mask)
        y, sums = conv(self.x, kept, residual, with_sums=True, threads=threads)
        assert sums is not None
        return y, sums

    def expected(self) -> Tensor:
        """Without residual and activation."""
        x, geometry = self.x, (self.stride, self.padding, self.dilation)
        if self.before is not None:
            scale, shift, activation = self.before
            x = APPLY[activation](x * scale[:, None, None] + shift[:, None, None])
        if self.gates is not None:
            y = dynamic_group_conv2d_reference(x, self.weight, self.gates * self.mask, *geometry)
        elif self.interleaved:
            by_group = self.weight.unflatten(0, (-1, self.groups)).transpose(0, 1).flatten(0, 1)
            y = F.conv2d(x, by_group, None, *geometry, self.groups)
            y = y.unflatten(1, (self.groups, -1)).transpose(1, 2).flatten(1, 2)
        else:
            y = F.conv2d(x, self.weight, None, *geometry, self.groups)
        return y if self.bias is None else y + self.bias[:, None, None]

    def check(self) -> None:
        y = self.expected()
        scale = max(1.0, y.abs().max().item())
        residual = torch.randn_like(y) if self.with_residual else None
        y = APPLY[self.activation](y if residual is None else y + residual)
        out, sums = self.run(residual, threads=1)
        assert out.shape == y.shape
        assert (out - y).abs().max().item() <= 1e-4 * scale, self
        assert (sums.sum(-1) - y.sum((2, 3))).abs().max().item() <= 1e-4 * scale * y[0, 0].numel(), self
        again, sums_again = self.run(residual, threads=2)
        assert torch.equal(out, again), "the result depends on the number of threads"
        assert torch.equal(sums, sums_again), "the sums depend on the number of threads"

    def __repr__(self) -> str:
        shapes = f"x {list(self.x.shape)}, weight {list(self.weight.shape)}, groups {self.groups}"
        return f"{shapes}, {self.stride=}, {self.padding=}, {self.dilation=}, dynamic {self.gates is not None}"


def random_case(seed: int) -> Case:
    r = random.Random(seed)
    torch.manual_seed(seed)
    is_dynamic, groups, batch = r.random() < 0.5, r.choice((1, 1, 2, 3, 4, 8)), r.choice((1, 1, 2, 7))
    outputs = groups * r.choice((1, 2, 3, 5, 8, 9, 16, 17, 24, 32, 40))
    inputs = r.choice((1, 3, 8, 16, 20, 33)) if is_dynamic else r.choice((1, 2, 3, 8, 16))
    channels = inputs if is_dynamic else inputs * groups
    kernel = (r.choice((1, 1, 3, 3, 3, 5, 7)),) * 2 if r.random() < 0.8 else (r.choice((1, 2, 3)), r.choice((1, 2, 4)))
    stride = (r.choice((1, 1, 1, 2, 3)),) * 2 if r.random() < 0.8 else (r.choice((1, 2)), r.choice((1, 2, 3)))
    dilation = (1, 1) if r.random() < 0.8 else (r.choice((1, 2)), r.choice((1, 2, 3)))
    padding = tuple(r.choice((0, side // 2)) for side in kernel)
    size = (max(r.choice((1, 3, 7, 8, 14, 19)), d * (k - 1) + 1) for d, k in zip(dilation, kernel, strict=True))
    case = Case(torch.randn(batch, channels, *size), torch.randn(outputs, inputs, *kernel), groups)
    case.stride, case.padding, case.dilation = stride, padding, dilation
    if is_dynamic:
        case.gates = torch.rand(batch, groups, channels)
        case.mask = torch.rand(batch, groups, channels) < r.choice((0, 0.25, 0.5, 1))
    case.interleaved = r.random() < 0.2
    if r.random() < 0.4:
        case.before = (torch.randn(channels), torch.randn(channels), r.choice(tuple(APPLY)))
    if r.random() < 0.5:
        case.bias = torch.randn(outputs)
    case.with_residual, case.activation = r.random() < 0.4, r.choice(tuple(APPLY))
    return case


def dynamic_case(batch: int, channels: int, outputs: int, heads: int, keep: int, size: int, kernel: int = 3) -> Case:
    case = Case(torch.randn(batch, channels, size, size), torch.randn(outputs, channels, kernel, kernel), heads)
    case.padding = (kernel // 2, kernel // 2)
    case.gates = torch.rand(batch, heads, channels)
    case.mask = case.gates >= case.gates.kthvalue(channels - keep + 1, -1, keepdim=True).values
    return case


@pytest.mark.slow
@pytest.mark.parametrize("part", range(7))
def test_random_shapes(isa, part):
    for seed in range(100 * part, 100 * part + 100):
        random_case(seed).check()


@pytest.mark.parametrize(
    ("channels", "outputs", "size"), [(64, 64, 56), (128, 128, 28), (256, 256, 14), (512, 512, 7), (64, 96, 33)]
)
@pytest.mark.parametrize("stride", [1, 2])
def test_layers_of_a_network(isa, channels, outputs, size, stride):
    """The widest layers take other paths than any small one."""
    case = dynamic_case(1, channels, outputs, 4, channels // 4, size)
    case.stride, case.with_residual, case.activation = (stride, stride), True, "relu"
    case.weight /= channels**0.5
    case.check()


@pytest.mark.parametrize(("kernel", "stride", "channels", "outputs"), [(7, 2, 3, 64), (3, 2, 3, 32)])
def test_stems(isa, kernel, stride, channels, outputs):
    case = Case(torch.randn(1, channels, 80, 72), torch.randn(outputs, channels, kernel, kernel))
    case.stride, case.padding, case.bias, case.activation = (
        (stride, stride),
        (kernel // 2,) * 2,
        torch.randn(outputs),
        "relu",
    )
    case.check()


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("size", [7, 14, 33, 112])
def test_depthwise(isa, kernel, stride, size):
    case = Case(torch.randn(2, 24, size, size), torch.randn(24, 1, kernel, kernel), groups=24)
    case.stride, case.padding, case.activation = (stride, stride), (kernel // 2,) * 2, "relu6"
    case.before, case.bias = (torch.randn(24), torch.randn(24), "relu"), torch.randn(24)
    case.check()


@pytest.mark.parametrize("channels", [1, 3, 8, 15, 16, 33])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [3, 5])
def test_depthwise_of_any_number_of_channels(isa, kernel, stride, channels):
    """Vectors of channels that are not full; rows that are wider than a vector of pixels, and narrower than half."""
    for batch, height, width in ((7, 5, 19), (1, 30, 3), (2, 1, 40)):
        case = Case(torch.randn(batch, channels, height, width), torch.randn(channels, 1, kernel, kernel), channels)
        case.stride, case.padding, case.with_residual = (stride, stride), (kernel // 2, kernel // 2), True
        case.bias, case.activation = torch.randn(channels), "relu"
        case.check()


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [3, 5])
def test_depthwise_of_parts_of_wider_tensors(isa, kernel, stride):
    """With more padding at the bottom and right, and nothing written beside the output."""
    weight, x = torch.randn(20, 1, kernel, kernel), torch.randn(3, 30, 11, 9)[:, 5:25]
    expected = F.conv2d(F.pad(x, (0, 2, 0, 2)), weight, None, stride, kernel // 2, groups=20)
    joined = torch.full((3, 50, *expected.shape[2:]), 7.0)
    conv = NativeConv2d(weight, stride=(stride, stride), padding=(kernel // 2,) * 2, groups=20)
    conv(x, out=joined[:, 10:30], threads=2)
    torch.testing.assert_close(joined[:, 10:30], expected, rtol=0, atol=1e-4 * expected.abs().max().item())
    assert (joined[:, :10] == 7).all()
    assert (joined[:, 30:] == 7).all()


@pytest.mark.parametrize("keep", [1, 2, 31, 32])
@pytest.mark.parametrize("heads", [1, 2, 4, 8])
@pytest.mark.parametrize("kernel", [1, 3])
def test_heads_and_channels_kept(isa, kernel, heads, keep):
    dynamic_case(7, 32, 32, heads, keep, 9, kernel).check()


@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_nothing_kept_leaves_bias_and_residual(isa, kernel):
    case = dynamic_case(2, 16, 64, 2, 4, 8, kernel)
    case.mask, case.bias = torch.zeros_like(case.mask), torch.randn(64)
    residual = torch.randn(2, 64, 8, 8)
    out, _ = case.run(residual, threads=1)
    assert torch.equal(out, case.bias[:, None, None] + residual)


def test_each_head_its_own_number(isa):
    case = dynamic_case(3, 24, 72, 3, 4, 10)
    ranks = torch.arange(24).expand(3, 3, 24)
    case.mask = ranks < torch.tensor([[0, 24, 1], [17, 3, 0], [5, 16, 23]])[..., None]
    case.check()


@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_parts_of_wider_tensors(isa, kernel):
    """Input, output and residual may be some channels of a buffer that others are joined in."""
    weight = torch.randn(20, 12, kernel, kernel)
    x, joined, residual = torch.randn(3, 30, 9, 9)[:, 5:17], torch.full((3, 50, 9, 9), 7.0), torch.randn(3, 25, 9, 9)
    conv = NativeConv2d(weight, padding=(kernel // 2,) * 2)
    conv(x, None, residual[:, 2:22], out=joined[:, 10:30], threads=2)
    expected = F.conv2d(x, weight, None, 1, kernel // 2) + residual[:, 2:22]
    torch.testing.assert_close(joined[:, 10:30], expected, rtol=0, atol=1e-4 * expected.abs().max().item())
    assert (joined[:, :10] == 7).all()
    assert (joined[:, 30:] == 7).all()


@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_more_padding_at_the_bottom_and_right(isa, kernel):
    weight, x = torch.randn(40, 12, kernel, kernel), torch.randn(2, 12, 11, 9)
    expected = F.conv2d(F.pad(x, (0, 1, 0, 1)), weight, None, 1, kernel // 2)
    out, _ = NativeConv2d(weight, padding=(kernel // 2,) * 2)(x, out=torch.empty_like(expected))
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-4 * expected.abs().max().item())


@pytest.mark.parametrize("activation", ["relu", "relu6"])
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_nan_stays_nan(isa, kernel, activation):
    x, weight = torch.randn(1, 16, 8, 8), torch.randn(32, 16, kernel, kernel)
    x[0, 3, 4, 4] = torch.nan
    out, _ = NativeConv2d(weight, padding=(kernel // 2,) * 2, activation=activation)(x)
    assert F.conv2d(x, weight, None, 1, kernel // 2).isnan().logical_and(~out.isnan()).sum() == 0


def test_a_weight_that_is_not_contiguous(isa):
    weight, x = torch.randn(3, 3, 12, 20).permute(3, 2, 0, 1), torch.randn(1, 12, 9, 9)
    expected = F.conv2d(x, weight)
    out, _ = NativeConv2d(weight)(x)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-4 * expected.abs().max().item())


@needs_library
def test_a_selection_from_a_mask_of_any_layout():
    mask, gates = torch.rand(4, 3, 5) < 0.5, torch.randn(4, 3, 5)
    expected, found = Kept.of(gates, mask), Kept.of(gates, mask.permute(2, 0, 1).contiguous().permute(1, 2, 0))
    assert torch.equal(found.channels, expected.channels)
    assert torch.equal(found.gates, expected.gates)
    assert torch.equal(found.counts, expected.counts)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_sanitizers_find_nothing(isa, tmp_path):
    """A stand-alone build: random shapes, buffers of exactly the promised size.

    What is undefined shows in the portable kernels, for all are made of the same source; ``python -m tests.fuzz
    --sanitized`` has everything of the whole library.
    """
    program = tmp_path / "driver"
    checks = "address,undefined" if isa == "portable" else "address"  # takes twice as long to compile
    sanitize = f"-std=c++17 -O0 -fsanitize={checks} -fno-sanitize-recover=all"
    sources = [CSRC / f"isa_{isa}.cpp", Path(__file__).with_name("native_driver.cpp")]
    options = [*sanitize.split(), *FLAGS[isa].split(), f"-I{CSRC}", f"-DDGCONV_TABLE={isa}_kernels"]
    subprocess.run(["g++", *options, *map(str, sources), "-o", str(program)], check=True)
    done = subprocess.run([str(program), "100", "1"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "100 convolutions agree\n"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_a_crew_is_timed_whoever_does_the_work(tmp_path):
    program, source = tmp_path / "driver", Path(__file__).with_name("crew_driver.cpp")
    subprocess.run(["g++", "-std=c++17", "-pthread", f"-I{CSRC}", str(source), "-o", str(program)], check=True)
    *steps, waited, worked = map(float, subprocess.run([program], capture_output=True, check=True).stdout.split())
    assert all(seconds >= 0.01 for seconds in steps), "two shares of 5 ms each, though the caller did none of them"
    assert (waited, worked) == (1, 0)


def say_isa(chosen: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: a library that is loaded has chosen."""
    code = "from dgconv.ops import native; print(native.isa())"
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"DGCONV_ISA": chosen}, capture_output=True, text=True, cwd=ROOT
    )


@pytest.mark.slow
@needs_library
def test_the_environment_chooses_the_instruction_set():
    assert say_isa("portable").stdout == "portable\n"
    unknown = say_isa("avx1024")
    assert unknown.returncode != 0
    assert (
        "DGCONV_ISA='avx1024' is unknown; use avx512_amx, avx512_vbmi2, avx512_vnni, avx512, avx_vnni, avx2, portable"
        in unknown.stderr
    )


@needs_library
def test_a_library_built_from_other_sources_is_not_used(monkeypatch, caplog):
    """And whoever prepares a network is told why: once as a warning, and in the report."""
    monkeypatch.setattr(native, "fingerprint", lambda: "another")
    monkeypatch.setattr(native, "_find", cache(native._find.__wrapped__))
    _, prepared = (deploy.prepare(nn.Conv2d(3, 4, 1).eval()) for _ in range(2))
    assert native.isa() == "none"
    reason = (
        "the native kernels are not in use: they were built from other sources than those installed; "
        "run `pip install -e .` again"
    )
    assert [(record.levelname, record.message) for record in caplog.records] == [("WARNING", reason)]
    assert prepared.report().summary == f"0 of 1 steps are native (none), 1 is left to torch; {reason}"
    with pytest.raises(UserError, match="built from other sources"):
        native.library()


def test_a_build_without_a_compiler_does_not_fail(tmp_path):
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", str(tmp_path), "--build-temp", str(tmp_path)]
    missing = {"CC": "no-such-compiler", "CXX": "no-such-compiler"}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | missing, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 'building extension "dgconv.ops._native" failed' in done.stderr + done.stdout
    assert not list(tmp_path.rglob("*.so"))
