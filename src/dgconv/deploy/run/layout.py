"""A program for one input shape: every step with the places of what it reads and writes."""

from ctypes import byref, sizeof
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from ...errors import UserError
from ...ops import structs
from ...ops.native import library
from ..graph import ByteConv, Concat, Conv, Graph, Resize, Slice, Step, byte_values
from .arena import Buffer, Home, assign_offsets, concat_places, find_homes, slice_place, value_buffers
from .budget import BUDGET
from .byte_packing import VECTOR
from .company import Company
from .memory import aligned
from .packed import sound_size
from .packing import PackedStep
from .shapes import Shape, as_planes, convolved_shape, padding_of, value_shapes

CACHE_FLOATS = 8 << 20  # 32 MB: what one run should not exceed
MOST_FLOATS = 2**31 - 1  # of a value for all images of one run: kernels count with 32 bits
BYTES_OF_STEP = 4096  # of a layout, beside what the step itself takes: about what Python's part of it does
NEVER_NEGATIVE = ("relu", "relu6", "sigmoid", "hard_sigmoid")
ROLES = {"output": "output", "input": "input", "residual": "other", "other": "other", "factor": "factor"}  # of values


@dataclass
class Sums:
    """Sums over the planes of a value, in parts, which its convolution leaves for the gates that follow."""

    buffer: Buffer
    parts: int


class Layout:
    """Where everything that a program touches lies, for one input shape, and the native form of its steps."""

    def __init__(self, graph: Graph, packed: list[PackedStep], batch: int, input_shape: Shape) -> None:
        self._graph, self._batch = graph, batch
        self._shapes = value_shapes(graph, input_shape)
        self._packed = [
            one.for_planes(self._shapes[step.output]) for step, one in zip(graph.steps, packed, strict=True)
        ]
        self._homes = find_homes(graph, self._shapes)
        self._are_bytes = byte_values(graph)
        self.output_shape = self._shapes[graph.output]
        self._convs = {step.output: (index, step) for index, step in enumerate(graph.steps) if isinstance(step, Conv)}

        self._values = value_buffers(graph, self._homes, self._shapes, batch)
        self._is_written_directly = graph.output != graph.input and self._homes[graph.output] == Home(graph.output)
        self._values[self._homes[graph.output].buffer].last = len(graph.steps)
        self._sums = self._plan_sums()
        self._gates = self._plan_gates()
        self._choices = self._plan_choices()
        in_arena = [buffer for name, buffer in self._values.items() if self._place(name) == structs.ARENA]
        in_arena += [sums.buffer for sums in self._sums.values()] + [*self._gates.values(), *self._choices.values()]
        self._arena_floats = assign_offsets(in_arena)

        self._fixed: list[Tensor] = []
        self._chosen_bytes = 0
        self._refuse_large_values()
        regions = [region for step in self._packed for region in step.regions]
        self._regions = (structs.Region * len(regions))(*regions)
        steps, self.labels = self._native_steps()
        self.steps = (structs.Step * len(steps))(*steps)
        scratch = [
            sound_size(library().dgconv_scratch_floats(byref(step)), label)
            for step, label in zip(steps, self.labels, strict=True)
        ]
        self._scratch_floats = aligned(max(scratch, default=0))
        self._program = structs.Program(
            self.steps,
            len(steps),
            batch,
            self._regions,
            len(self._regions),
            self._arena_floats,
            self._scratch_floats,
            self._chosen_bytes,
        )
        self._company = Company()
        self._run, self._program_address = library().dgconv_run, byref(self._program)
        self._refuse_unsound()
        self.bytes = len(steps) * (sizeof(structs.Step) + BYTES_OF_STEP) + sum(part.nbytes for part in self._fixed)

    @property
    def images_at_once(self) -> int:
        """How many batches like this one to run together."""
        return max(1, min(CACHE_FLOATS // max(1, self._arena_floats), MOST_FLOATS // max(1, self._largest)))

    def run(self, x: Tensor, y: Tensor, chosen: Tensor | None = None, seconds: Tensor | None = None) -> None:
        """Runs contiguous images to as many results, the first of ``y``; adds to ``seconds`` [steps, stages].

        ``chosen`` is what was kept of an earlier run of the same program, or zeros.
        """
        address = x.data_ptr()
        if not address and x.numel():  # freed, or zeros that torch only pretends to hold
            raise UserError("the input has no memory that native code could read; use the original model")
        threads = self._company.threads()
        arena = BUDGET.take(self._arena_floats + threads * self._scratch_floats)
        times = None if seconds is None else seconds.data_ptr()
        try:
            kept = None if chosen is None else chosen.data_ptr()
            slowed = self._run(self._program_address, address, y.data_ptr(), arena, kept, threads, times)
            if slowed:
                self._company.slowed_down(slowed)
        finally:
            BUDGET.give_back(arena)

    def _refuse_large_values(self) -> None:
        """Refuses values that kernels cannot count: of all that they count, a value has the most."""
        sizes = {name: prod(as_planes(shape)) for name, shape in self._shapes.items()}
        name = max(sizes, key=lambda name: sizes[name])
        self._largest = sizes[name]
        if self._batch * self._largest > MOST_FLOATS:
            raise UserError(
                f"{name!r} would have the shape {list(self._shapes[name])}, which is more than native code can count; "
                "use smaller images"
            )

    def _refuse_unsound(self) -> None:
        """The last look at what was laid out, by those who will have to live with it."""
        floats = (self._batch * prod(as_planes(self._shapes[name])) for name in (self._graph.input, self._graph.output))
        if refusal := library().dgconv_check_program(self._program_address, *floats):
            step, reason = divmod(refusal, 256)
            label = self.labels[step - 1] if step else "the program"
            raise UserError(f"the native kernels refuse {label!r}: {library().dgconv_refusal(reason).decode()}")

    def _plan_sums(self) -> dict[str, Sums]:
        """Sums by value: of those that a convolution writes and one with a gate reads as they are."""
        sums: dict[str, Sums] = {}
        for index, step in enumerate(self._graph.steps):
            if (producer := self._summed_by(step)) is None:
                continue
            value = self._graph.steps[producer].output
            if value not in sums:
                channels, height, width = self._shapes[value]
                conv = self._packed[producer].native.conv
                parts = sound_size(library().dgconv_conv_pool_parts(byref(conv), height, width), value)
                sums[value] = Sums(Buffer(self._batch * channels * parts, producer, index), parts)
            sums[value].buffer.last = index
        return sums

    def _plan_gates(self) -> dict[int, Buffer]:
        """Rooms by step, in which a convolution with a gate decides."""
        gates: dict[int, Buffer] = {}
        for index, (step, packed) in enumerate(zip(self._graph.steps, self._packed, strict=True)):
            if isinstance(step, Conv) and (step.gate or step.boost):
                gate = byref(packed.native.gate)
                floats = sound_size(library().dgconv_gate_floats(gate, self._batch), step.output)
                gates[index] = Buffer(floats, index, index)
            if (producer := self._chosen_by(step)) is not None:
                gates[producer].last = index
        return gates

    def _plan_choices(self) -> dict[int, Buffer]:
        """Rooms by step, in which a convolution of bytes puts down what its gate chose."""
        rooms: dict[int, Buffer] = {}
        for index, (step, packed) in enumerate(zip(self._graph.steps, self._packed, strict=True)):
            if isinstance(step, ByteConv) and step.gate:
                floats = library().dgconv_choice_floats(byref(packed.native.bytes))
                rooms[index] = Buffer(sound_size(floats, step.output), index, index)
                floats = library().dgconv_gate_floats(byref(packed.native.gate), 1)
                self._gates[index] = Buffer(sound_size(floats, step.output), index, index)
        return rooms

    def _summed_by(self, step: Step) -> int | None:
        """The convolution that knows the sums of what a gate pools: of magnitudes only where nothing is negative."""
        if not isinstance(step, Conv) or not (step.gate or step.boost) or step.before:
            return None
        index, conv = self._convs.get(step.input, (None, None))
        return None if conv is None or (step.boost and conv.activation not in NEVER_NEGATIVE) else index

    def _chosen_by(self, step: Step) -> int | None:
        """The convolution whose winners are all that a step needs to read, the rest of its input being zero."""
        if not isinstance(step, Conv) or not step.boost or step.before:
            return None
        index, conv = self._convs.get(step.input, (None, None))
        return index if conv and conv.boost and not conv.residual else None

    def _native_steps(self) -> tuple[list[structs.Step], list[str]]:
        """All steps, and of each what layers it stands for: a concatenation can be several copies, or none."""
        result: list[structs.Step] = []
        labels: list[str] = []
        regions_end = 0
        for index, (step, packed) in enumerate(zip(self._graph.steps, self._packed, strict=True)):
            if isinstance(step, Concat):
                places = concat_places(step, self._homes, self._shapes)
                result += [self._copy(part, place) for part, place in places if self._homes[part] != place]
                labels += [step.label] * (len(result) - len(labels))
                continue
            if isinstance(step, Slice):
                place = slice_place(step, self._homes)
                if self._homes[step.output] != place:
                    shape = self._shapes[step.output]
                    result.append(self._copied(self._view_at(place, shape), self._view(step.output)))
                    labels.append(step.label)
                continue
            native = structs.Step.from_buffer_copy(packed.native)
            regions_end += len(packed.regions)
            native.regions_end = regions_end
            self._place_values(native, step)
            if isinstance(step, Resize):
                native.resize.ratio_h, native.resize.ratio_w = self._ratios(step)
            if isinstance(step, Conv):
                shape = self._shapes[step.input]
                if step.expansion is not None:
                    native.expansion.pad_top, native.expansion.pad_left = padding_of(step.expansion, shape)[0]
                    shape = convolved_shape(step.expansion, shape)
                    native.other = structs.View(0, 0, structs.NOWHERE, *shape)
                native.conv.pad_top, native.conv.pad_left = padding_of(step, shape)[0]
            if isinstance(step, Conv) and step.output in self._sums:
                native.output_sums = self._sums[step.output].buffer.offset
            if isinstance(step, Conv) and step.picks is not None:
                native.fixed = self._fixed_selection(step.picks, step.weight.shape[1])
            if index in self._gates:
                native.gate_memory = self._gates[index].offset
            if index in self._choices:
                native.choices, native.chosen = self._choices[index].offset, self._chosen_bytes
                self._chosen_bytes += packed.chosen_bytes
            if (producer := self._summed_by(step)) is not None:
                sums = self._sums[self._graph.steps[producer].output]
                native.input_sums, native.input_parts = sums.buffer.offset, sums.parts
            if (producer := self._chosen_by(step)) is not None:
                native.conv.dynamic, native.input_winners = True, self._gates[producer].offset
            result.append(native)
            labels.append(step.label)
        if not self._is_written_directly:
            copy = self._copy(self._graph.output, self._homes[self._graph.output])
            copy.output = self._whole(self._graph.output, structs.OUTPUT)
            result.append(copy)
            labels.append("")
        return result, labels

    def _place_values(self, native: structs.Step, step: Step) -> None:
        for field, role in ROLES.items():
            if (value := getattr(step, field, None)) is None:
                continue
            if value in self._are_bytes:
                setattr(native, f"byte_{role}", self._byte_view_at(self._homes[value], self._shapes[value]))
            else:
                setattr(native, role, self._view(value))

    def _ratios(self, step: Resize) -> tuple[float, float]:
        """How far rows and columns of the result lie apart in the input, as torch counts it."""
        sizes = zip(self._shapes[step.input][1:], self._shapes[step.output][1:], step.scale or (0.0, 0.0), strict=True)
        if step.kind == "bilinear" and step.aligns_corners:
            down, right = ((size - 1) / (result - 1) if result > 1 else 0.0 for size, result, _ in sizes)
        else:
            down, right = (1 / scale if scale else size / result for size, result, scale in sizes)
        return down, right

    def _fixed_selection(self, picks: list[list[int]], channels: int) -> structs.Selection:
        """The same for every image, as a gate would lay it out: channels [B, H, C], counts [B, H]; no gates."""
        kept = torch.zeros(self._batch, len(picks), channels, dtype=torch.int32, device="cpu")
        for head, picked in enumerate(picks):
            kept[:, head, : len(picked)] = torch.tensor(picked, dtype=torch.int32, device="cpu")
        counts = torch.tensor([len(picked) for picked in picks], dtype=torch.int32, device="cpu").repeat(self._batch, 1)
        self._fixed += kept, counts  # kept alive as long as the steps that point to them
        return structs.Selection(kept.data_ptr(), None, counts.data_ptr())

    def _copy(self, value: str, place: Home) -> structs.Step:
        """An elementwise step that does nothing to the values."""
        if value in self._are_bytes:
            return self._copy_bytes(value, place)
        return self._copied(self._view(value), self._view_at(place, self._shapes[value]))

    @staticmethod
    def _copied(source: structs.View, target: structs.View) -> structs.Step:
        return structs.Step(kind=structs.ELEMENTWISE, input=source, output=target)

    def _copy_bytes(self, value: str, place: Home) -> structs.Step:
        shape = self._shapes[value]
        ones = torch.ones(shape[0] + VECTOR, dtype=torch.float32, device="cpu")
        zeros = torch.zeros_like(ones)
        self._fixed += ones, zeros
        numbers = structs.ByteConv(
            multiplier=ones.data_ptr(), bias=zeros.data_ptr(), result=structs.ToByte(0.0, 255.0, 0)
        )
        views = {
            "byte_input": self._byte_view_at(self._homes[value], shape),
            "byte_output": self._byte_view_at(place, shape),
        }
        return structs.Step(kind=structs.RESCALE, bytes=numbers, **views)

    def _byte_view_at(self, home: Home, shape: Shape) -> structs.ByteView:
        channels, height, width = as_planes(self._shapes[home.buffer])
        offset = 4 * self._values[home.buffer].offset + home.channel
        return structs.ByteView(offset, channels * height * width, channels, structs.ARENA, shape[0], height, width)

    def _view(self, value: str) -> structs.View:
        return self._view_at(self._homes[value], self._shapes[value])

    def _view_at(self, home: Home, shape: Shape) -> structs.View:
        view = self._whole(home.buffer, self._place(home.buffer))
        view.channels = shape[0]
        view.offset += home.channel * view.height * view.width
        return view

    def _whole(self, buffer: str, place: int) -> structs.View:
        channels, height, width = as_planes(self._shapes[buffer])
        offset = self._values[buffer].offset if place == structs.ARENA else 0
        return structs.View(offset, channels * height * width, place, channels, height, width)

    def _place(self, buffer: str) -> int:
        if buffer == self._graph.input:
            return structs.INPUT
        is_output = buffer == self._graph.output and self._is_written_directly
        return structs.OUTPUT if is_output else structs.ARENA
