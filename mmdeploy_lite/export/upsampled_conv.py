"""Convolutions of upsampled maps, computed before upsampling.

Decode heads bring maps of several sizes to the largest and convolve them side by side: the fusion of SegFormer, the
bottlenecks of PSPNet and UPerNet, the pooled branch of DeepLab. Upsampling and convolving are both linear, so the
order is free: each tap of the kernel multiplies the channels of the small map, and what comes out is upsampled and
moved by the tap's place. A map upsampled four times is multiplied by a sixteenth as often. At the borders it is the
same, too: rows that a tap sees outside of the map are rows of zeros in the matrix that upsamples and moves.

    Conv(Concat(large, Resize(small)))  ->  Conv(large) + columns' @ (rows @ Conv1x1(small))

It rounds otherwise and computes the same. Only where it saves work, which is counted, see :func:`gain`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import onnx

from .facts import Facts
from .graphs import attribute, copy_node
from .nodes import Nodes
from .resizes import is_linear, mode_of, position_of

RESIZED = 100
"""Multiplications in the time in which an element is upsampled, or added and written: of 256 channels from 64 x 64 to
128 x 128, on 2 cores, Resize took 1.4 ns, MatMul with two matrices 1.9, Add 0.6, and convolutions do 100 per ns.
"""

MADE = 5e7
"""The same for the matrices, where they are made anew for each image: some 150 operators."""

LESS = 1.1
"""By how much less work it must be."""


class Kernel(NamedTuple):
    """A convolution that keeps the size.

    Attributes:
        weights: (O, C, k, l) float32.
        bias: the name of (O,) float32; empty for none.
        taps: (k, l).
        dilations: along each axis.
    """

    weights: np.ndarray
    bias: str
    taps: tuple[int, int]
    dilations: tuple[int, int]

    @property
    def out(self) -> int:
        """Channels of the result."""
        return self.weights.shape[0]


class Part(NamedTuple):
    """Some of the channels that are convolved.

    Attributes:
        value: their name, as the convolution reads them.
        start: the first of them.
        stop: one behind the last.
        resize: what upsamples them; None for others.
        size: (h, w) before, of a usual image.
        wanted: (H, W) after.
        fixed: whether that is their size for every image.
    """

    value: str
    start: int
    stop: int
    resize: onnx.NodeProto | None = None
    size: tuple[int, int] = (0, 0)
    wanted: tuple[int, int] = (0, 0)
    fixed: bool = False


def convolved_early(facts: Facts) -> Iterator[tuple[onnx.NodeProto, Nodes, str]]:
    """Convolutions that are better computed before upsampling: each, and nodes with the name of the same result."""
    for node in facts.nodes:
        parts = _parts(facts, node) if node.op_type == 'Conv' else []
        small = [part for part in parts if part.resize is not None]
        kernel = _kernel(facts, node) if small else None
        if kernel is None:
            continue
        small = [part for part in small if gain(kernel, part) > 0]
        if small:
            op = Nodes(node.output[0])
            yield node, op, _convolved(op, kernel, parts, small)


def _kernel(facts: Facts, node: onnx.NodeProto) -> Kernel | None:
    weights = facts.constant(node.input[1])
    if weights is None or weights.ndim != 4 or weights.dtype != np.float32 or attribute(node, 'group', 1) != 1:
        return None
    taps, dilations = weights.shape[2:], tuple(attribute(node, 'dilations', [1, 1]))
    reach = [(count - 1) * dilation for count, dilation in zip(taps, dilations, strict=True)]
    middle = [extent // 2 for extent in reach]
    if (
        any(count % 2 == 0 for count in taps)
        or list(attribute(node, 'pads', [0] * 4)) != middle * 2
        or list(attribute(node, 'strides', [1, 1])) != [1, 1]
    ):
        return None
    return Kernel(weights, node.input[2] if len(node.input) > 2 else '', taps, dilations)


def _parts(facts: Facts, node: onnx.NodeProto) -> list[Part]:
    """What a convolution reads, part by part; nothing where the channels of a part are not known."""
    join = facts.producers.get(node.input[0])
    values = [node.input[0]]
    if join is not None and join.op_type == 'Concat' and attribute(join, 'axis') in (1, -3):
        values = list(join.input)
        if facts.only_reader(node.input[0]) is None:
            return []
    parts, start = [], 0
    for value in values:
        channels = facts.size(value, 1)
        if channels is None:
            return []
        part = Part(value, start, start + channels)
        resize = facts.producers.get(value)
        if resize is not None and is_linear(resize) and facts.only_reader(value) is not None:
            places = [(name, axis) for name in (resize.input[0], value) for axis in (2, 3)]
            sizes = [facts.usual_size(*place) for place in places]
            if None not in sizes:
                fixed = None not in [facts.size(*place) for place in places]
                part = part._replace(resize=resize, size=tuple(sizes[:2]), wanted=tuple(sizes[2:]), fixed=fixed)
        parts.append(part)
        start += channels
    return parts


def gain(kernel: Kernel, part: Part) -> float:
    """How many multiplications it saves to convolve a part before upsampling it."""
    (height, width), (rows, columns), (tall, wide) = part.size, part.wanted, kernel.taps
    channels, pixels = part.stop - part.start, rows * columns
    dense = kernel.out * channels * tall * wide
    before = (dense + RESIZED * channels) * pixels
    if tall == wide == 1:
        matrices, moved, made = 0, 2 * pixels, 0
    else:
        made = 0 if part.fixed else MADE
        matrices = wide * rows * tall * height * width + rows * wide * width * columns
        # what comes out of the taps is put into rows, and these side by side
        moved = tall * wide * height * width + 2 * wide * width * rows + pixels
    after = dense * height * width + kernel.out * (matrices + RESIZED * moved) + made
    return before - LESS * after


def _convolved(op: Nodes, kernel: Kernel, parts: list[Part], small: list[Part]) -> str:
    large = [part for part in parts if part not in small]
    # upsampling keeps what is the same everywhere, and so the bias may be added before
    biases = ['' if large or index else kernel.bias for index in range(len(small))]
    if kernel.taps == (1, 1):
        made = [_resized(op, kernel, *each) for each in zip(small, biases, strict=True)]
    else:
        made = [_moved(op, kernel, small, biases)]
    total = made[-1]
    for other in reversed(made[:-1]):
        total = op.Add(total, other)
    if not large:
        return total
    value = op.Concat(*(part.value for part in large), axis=1) if len(large) > 1 else large[0].value
    kept = np.concatenate([kernel.weights[:, part.start : part.stop] for part in large], axis=1)
    read = [value, op.constant(kept, 'large'), *([kernel.bias] if kernel.bias else [])]
    pads = [count // 2 * dilation for count, dilation in zip(kernel.taps, kernel.dilations, strict=True)]
    return op.Add(op.Conv(*read, pads=pads * 2, dilations=list(kernel.dilations)), total)


def _resized(op: Nodes, kernel: Kernel, part: Part, bias: str) -> str:
    """A part convolved by a kernel of one tap, and upsampled as it was: ONNX Runtime does that in its own layout."""
    layer = op.constant(kernel.weights[:, part.start : part.stop], f'layer{part.start}')
    mixed = op.Conv(part.resize.input[0], layer, *([bias] if bias else []))
    sizes = part.resize.input[3]
    sizes = op.Concat(op.Slice(sizes, [0], [1]), [kernel.out], op.Slice(sizes, [2], [4]), axis=0)
    resize = copy_node(part.resize)
    resize.input[0], resize.input[3], resize.output[0] = mixed, sizes, f'{mixed}_resized'
    resize.name = resize.output[0]
    op.nodes.append(resize)
    return resize.output[0]


def _moved(op: Nodes, kernel: Kernel, parts: list[Part], biases: list[str]) -> str:
    """Parts convolved by a kernel of several taps: matrices upsample what the taps see, move it and add it up."""
    tall, wide = kernel.taps
    lines, matrices = [], []
    for part, bias in zip(parts, biases, strict=True):
        source, shape = part.resize.input[0], op.Shape(part.resize.input[0])
        layers = kernel.weights[:, part.start : part.stop].transpose(3, 0, 2, 1)  # (wide, O, tall, C)
        layers = layers.reshape(-1, part.stop - part.start, 1, 1)
        read = [source, op.constant(layers, f'layer{part.start}')]
        if bias:  # to the middle tap, which sees a pixel of the map everywhere
            middle = np.zeros((wide, kernel.out, tall), dtype=np.float32)
            middle[wide // 2, :, tall // 2] = 1
            spread = op.Mul(op.Reshape(bias, [1, -1, 1]), op.constant(middle, 'middle'))
            read.append(op.Reshape(spread, [-1]))
        sizes, wanted = ([op.Gather(of, axis) for axis in (2, 3)] for of in (shape, part.resize.input[3]))
        rows, columns = (
            upsampling_of_taps(op, *each, mode_of(part.resize))
            for each in zip(sizes, wanted, *kernel[2:4], strict=True)
        )
        seen = op.Reshape(op.Conv(*read), [0, wide * kernel.out, -1, 0])  # rows: (tall x h)
        line = op.MatMul(rows, seen)
        extents = op.Concat([0, wide, kernel.out], *(op.Unsqueeze(size, [0]) for size in (wanted[0], sizes[1])), axis=0)
        line = op.Transpose(op.Reshape(line, extents), perm=[0, 2, 3, 1, 4])
        lines.append(op.Reshape(line, [0, 0, 0, -1]))
        matrices.append(op.Transpose(columns, perm=[1, 0]))
    line = op.Concat(*lines, axis=3) if len(lines) > 1 else lines[0]
    return op.MatMul(line, op.Concat(*matrices, axis=0) if len(matrices) > 1 else matrices[0])


def upsampling_of_taps(op: Nodes, size: str, wanted: str, count: int, dilation: int, mode: str) -> str:
    """(wanted, count x size) float32: by which the rows of a map are multiplied, for what each tap of a kernel sees.

    A pixel's weight for a row of the map falls linearly with their distance, to nothing one row away. Where a tap is
    outside, it sees nothing.

    Args:
        op: takes the nodes.
        size: rows of the map, a scalar.
        wanted: rows after, a scalar.
        count: taps, an odd number.
        dilation: rows from one to the next.
        mode: the ``coordinate_transformation_mode``, one of MODES.
    """
    taps = []
    for tap in range(count):
        y = op.Range(0, wanted, 1)
        away = (tap - count // 2) * dilation
        if away:
            y = op.Add(y, away)
        position, one = position_of(op, y, size, wanted, mode)
        position = op.Max(op.Min(op.Sub(position, one), op.Mul(op.Sub(size, 1), one)), 0)
        distance = op.Abs(op.Sub(op.Unsqueeze(position, [1]), op.Mul(op.Range(0, size, 1), one)))
        weights = op.Relu(op.Sub(1.0, op.Div(op.Cast(distance, to=1), op.Cast(one, to=1))))
        if away:
            inside = op.Equal(y, op.Max(op.Min(y, op.Sub(wanted, 1)), 0))
            weights = op.Mul(weights, op.Unsqueeze(op.Cast(inside, to=1), [1]))
        taps.append(weights)
    return op.Concat(*taps, axis=1)
