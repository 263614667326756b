"""The structs of ``csrc/kernels.h`` and ``csrc/program.h``, field by field, as ctypes sees them.

An address is an integer, the ``data_ptr()`` of a tensor that the caller keeps alive; None is the null pointer.
"""

from collections.abc import Iterator
from ctypes import CDLL, POINTER, Structure, byref, c_char_p, c_double, c_float, c_int32, c_int64, c_void_p, sizeof
from typing import Any, ClassVar

ACTIVATIONS = {
    name: number
    for number, name in enumerate(
        ("identity", "relu", "relu6", "silu", "hard_swish", "hard_sigmoid", "sigmoid", "tanh", "gelu", "gelu_tanh")
    )
}


def _fields(names: str, kind: Any) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class Planes(Structure):
    _fields_: ClassVar = [
        ("data", c_void_p),
        ("image_stride", c_int64),
        *_fields("channels height width", c_int32),
    ]


class Conv(Structure):
    _fields_: ClassVar = [
        *_fields("in_channels out_channels", c_int32),
        *_fields("kernel_h kernel_w stride_h stride_w pad_top pad_left dilation_h dilation_w", c_int32),
        *_fields("groups dynamic", c_int32),
        *_fields("weight in_scale in_shift", c_void_p),
        ("in_activation", c_int32),
        ("bias", c_void_p),
        *_fields("activation interleaved", c_int32),
        ("beta", c_void_p),
        ("few_pixels", c_int32),
    ]


class Selection(Structure):
    _fields_: ClassVar = _fields("channels gates counts", c_void_p)


class Norm(Structure):
    _fields_: ClassVar = [*_fields("scale shift", c_void_p), ("activation", c_int32)]


class Window(Structure):
    _fields_: ClassVar = _fields("is_max kernel_h kernel_w stride_h stride_w pad_top pad_left", c_int32)


class Resize(Structure):
    _fields_: ClassVar = [*_fields("is_bilinear aligns_corners", c_int32), *_fields("ratio_h ratio_w", c_float)]


class Gate(Structure):
    _fields_: ClassVar = [
        *_fields("channels heads hidden", c_int32),
        *_fields("weight1 weight2 beta", c_void_p),
        *_fields("is_global keep", c_int32),
        ("threshold", c_float),
        ("fixed", c_void_p),
    ]


NOWHERE, ARENA, INPUT, OUTPUT = range(4)  # places


class View(Structure):
    _fields_: ClassVar = [
        *_fields("offset image_stride", c_int64),
        *_fields("place channels height width", c_int32),
    ]


class ByteView(Structure):
    _fields_: ClassVar = [
        *_fields("offset image_stride pixel_stride", c_int64),
        *_fields("place channels height width", c_int32),
    ]


class ToByte(Structure):
    _fields_: ClassVar = [*_fields("low high", c_float), ("zero", c_int32)]


class ByteGenerator(Structure):
    _fields_: ClassVar = _fields("weight1 weight2 scale", c_void_p)


class ByteConv(Structure):
    _fields_: ClassVar = [
        *_fields("in_channels out_channels", c_int32),
        *_fields("kernel_h kernel_w stride_h stride_w pad_top pad_left dilation_h dilation_w", c_int32),
        *_fields("groups chooses most_chosen is_depthwise joined", c_int32),
        *_fields("weight start multiplier bias", c_void_p),
        ("residual_scale", c_float),
        ("input_zero", c_int32),
        ("result", ToByte),
        ("input_scale", c_float),
        *_fields("positions choices", c_void_p),
        ("generator", ByteGenerator),
    ]


CONV, DYNAMIC_CONV, POOL, GLOBAL_POOL, LINEAR, ELEMENTWISE, EXPAND, WINNERS_CONV = range(8)  # kinds of steps
LAYER_NORM, RESIZE, PAD = range(8, 11)
QUANTIZE, DEQUANTIZE, BYTE_CONV, BYTE_POOL, BYTE_MEAN, RESCALE, BYTE_TABLE = range(11, 18)  # ... with bytes
BLOCKS, FIXED, GATED, FOLDED = range(4)  # what the groups of a ByteConv read; with FOLDED, gates go into its weights


class Step(Structure):
    _fields_: ClassVar = [
        *_fields("kind activation", c_int32),
        *_fields("input output other factor", View),
        *_fields("conv expansion", Conv),
        ("gate", Gate),
        ("fixed", Selection),
        ("before", Norm),
        ("window", Window),
        ("resize", Resize),
        ("epsilon", c_float),
        *_fields("weight scale bias order", c_void_p),
        *_fields("output_sums input_sums", c_int64),
        *_fields("input_parts regions_end", c_int32),
        *_fields("gate_memory input_winners", c_int64),
        *_fields("byte_input byte_output byte_other", ByteView),
        ("bytes", ByteConv),
        *_fields("choices chosen", c_int64),
    ]


class Region(Structure):
    _fields_: ClassVar = [("data", c_void_p), ("floats", c_int64)]


class Program(Structure):
    _fields_: ClassVar = [
        ("steps", POINTER(Step)),
        *_fields("step_count batch", c_int32),
        ("regions", POINTER(Region)),
        ("region_count", c_int32),
        *_fields("scratch scratch_floats chosen_bytes", c_int64),
    ]


SHARED: tuple[type[Structure], ...] = (
    *(Planes, Conv, Selection, Region, Norm, Window, Resize, Gate, View, ByteView),
    *(ToByte, ByteConv, ByteGenerator, Step, Program),
)


class _Entry(Structure):
    """An entry of csrc/layout.cpp: a struct, or a field of one."""

    _fields_: ClassVar = [("name", c_char_p), *_fields("offset bytes", c_int64)]


STAGES = ("pool", "generator", "select", "compute")  # what the time of a step is spent on


def declare(library: CDLL) -> None:
    """Tells ctypes the types of the functions that take these structs."""
    for name, result, arguments in (
        ("dgconv_conv_packed_floats", c_int64, (POINTER(Conv),)),
        ("dgconv_pack_conv", None, (POINTER(Conv), c_void_p, c_void_p)),
        ("dgconv_conv_pool_parts", c_int32, (POINTER(Conv), c_int32, c_int32)),
        ("dgconv_conv_scratch_floats", c_int64, (POINTER(Conv), *[c_int32] * 4)),
        (
            "dgconv_conv",
            None,
            (POINTER(Conv), POINTER(Selection), c_int32, *[POINTER(Planes)] * 3, *[c_void_p] * 2, c_int64, c_int32),
        ),
        ("dgconv_layout", c_int32, (POINTER(POINTER(_Entry)),)),
        ("dgconv_conv_has_few_pixels", c_int32, (POINTER(Conv), c_int32, c_int32)),
        ("dgconv_can_expand", c_int32, (POINTER(Conv), POINTER(Conv))),
        ("dgconv_gate_floats", c_int64, (POINTER(Gate), c_int32)),
        ("dgconv_scratch_floats", c_int64, (POINTER(Step),)),
        ("dgconv_check_program", c_int64, (POINTER(Program), c_int64, c_int64)),
        ("dgconv_refusal", c_char_p, (c_int32,)),
        ("dgconv_run", c_double, (POINTER(Program), *[c_void_p] * 4, c_int32, c_void_p)),
        ("dgconv_joined_groups", c_int32, (POINTER(ByteConv),)),
        ("dgconv_byte_packed_bytes", c_int64, (POINTER(ByteConv),)),
        ("dgconv_pack_bytes", None, (POINTER(ByteConv), c_void_p, c_void_p)),
        ("dgconv_choices_bytes", c_int64, (POINTER(ByteConv),)),
        ("dgconv_chosen_bytes", c_int64, (POINTER(ByteConv),)),
        ("dgconv_choice_floats", c_int64, (POINTER(ByteConv),)),
        ("dgconv_choose_bytes", None, (POINTER(ByteConv), c_int32, c_void_p, c_int32, c_void_p)),
        ("dgconv_gate_scratch_floats", c_int64, (POINTER(Gate),)),
        ("dgconv_generate", None, (POINTER(Gate), c_int32, *[c_void_p] * 3)),
        ("dgconv_generate_bytes", None, (POINTER(Gate), POINTER(ByteGenerator), *[c_void_p] * 3)),
        ("dgconv_select", None, (POINTER(Gate), c_int32, *[c_void_p] * 5)),
        ("dgconv_sparse_select", c_int32, (*[c_void_p] * 2, c_int64, c_int32, *[c_void_p] * 3)),
        ("dgconv_sparse_scratch_floats", c_int64, (POINTER(Conv), *[c_int32] * 3)),
        ("dgconv_sparse_pack", None, (POINTER(Conv), *[c_void_p] * 2, c_int32)),
        ("dgconv_sparse_unpack", None, (POINTER(Conv), *[c_void_p] * 2, c_int32)),
        ("dgconv_sparse_forward", None, (*_sparse(2), *[c_void_p] * 2, c_int64, c_int32)),
        ("dgconv_sparse_backward_input", None, (*_sparse(3), *[c_void_p] * 3, c_int64, c_int32)),
        ("dgconv_sparse_backward_weight", None, (*_sparse(2), *[c_void_p] * 2, c_int64, c_int32)),
        ("dgconv_can_train_by_tiles", c_int32, ()),
        ("dgconv_tile_scratch_bytes", c_int64, (POINTER(Conv), c_int32, *[POINTER(Planes)] * 2)),
        ("dgconv_tile_transpose", None, (*[c_int64] * 3, *[c_void_p] * 2, c_int32)),
        ("dgconv_tile_rows_words", c_int64, (POINTER(Conv),)),
        ("dgconv_tile_pack_rows", None, (POINTER(Conv), *[c_void_p] * 2, c_int32)),
        ("dgconv_tile_unpack_sums", None, (POINTER(Conv), *[c_void_p] * 2, c_int32)),
        (
            "dgconv_tile_forward",
            None,
            (
                *(POINTER(Conv), POINTER(Selection), c_int32, *[POINTER(Planes)] * 2),
                *(c_void_p, c_int32, c_void_p, c_int64, c_int32),
            ),
        ),
        (
            "dgconv_tile_backward_input",
            None,
            (*_sparse(3), c_void_p, c_int32, *[c_void_p] * 2, c_int64, c_int32),
        ),
        ("dgconv_tile_backward_weight", None, (*_sparse(2), c_void_p, c_int32, c_void_p, c_int64, c_int32)),
        ("dgconv_tile_means", None, (*[c_int64] * 3, c_int32, *[c_void_p] * 2, c_int32)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    check_layout(library)


def _sparse(planes: int) -> tuple[Any, ...]:
    """What the functions for training have in common."""
    return (POINTER(Conv), POINTER(Selection), c_int32, c_int32, *[POINTER(Planes)] * planes)


def check_layout(library: CDLL) -> None:
    """Refuse a library whose structs are not, field by field, those that Python fills in."""
    first = POINTER(_Entry)()
    count = library.dgconv_layout(byref(first))
    theirs = {first[i].name.decode(): (first[i].offset, first[i].bytes) for i in range(count)}
    ours = dict(layout(SHARED))
    differing = [name for name in dict.fromkeys([*ours, *theirs]) if ours.get(name) != theirs.get(name)]
    if differing:
        raise ImportError(f"dgconv/ops/structs.py and csrc differ in their idea of {', '.join(differing)}")


def layout(kinds: tuple[type[Structure], ...]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Name, offset and size of structs and of their fields."""
    for kind in kinds:
        yield kind.__name__, (0, sizeof(kind))
        for name, *_ in kind._fields_:
            field = getattr(kind, name)
            yield f"{kind.__name__}.{name}", (field.offset, field.size)
