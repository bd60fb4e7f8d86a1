"""Upsampled values in blocks that stay in the cache, where the next operator reads across the channels.

Linear upsampling is separable: each block is a part of the input between two matrices, one for its rows and one for
its columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .facts import Facts
from .graphs import attribute

BLOCK = 2**19
"""About how many elements all channels of a block have. SegFormer-b0 in windows takes as long with 2**18 to 2**20, and
a seventh longer with 2**22.
"""

_PRODUCTS = 120
"""For one element of a block at most, of which a Resize takes four. Blocks of few channels are large, and where these
are upsampled to twice the size it is more: 9 channels of 512 x 1024 took 22 ms so, and 10 without. At 104, 19 channels
and four times the size, it was 17 ms and 29 without.
"""


class Blocks(NamedTuple):
    """What makes an upsampled value.

    Attributes:
        names: of the blocks (N, C, h, w): first those of the leftmost columns, from top to bottom.
        nodes: that make them.
        weights: that these read.
    """

    names: list[list[str]]
    nodes: list[onnx.NodeProto]
    weights: list[onnx.TensorProto]


def crowded(pixels: int, channels: int) -> bool:
    """Whether the float32 channels of one pixel, so many pixels apart, do not fit into the cache side by side.

    A first level of 8 ways has one place for what lies a multiple of 4096 bytes apart. 150 channels of 32 x 1024
    pixels took ArgMax 2.4 ns each, of 32 x 1023 0.6.
    """
    places = min(4096 // math.gcd(4 * pixels, 4096), 4096 // 64)
    return channels > 8 * places


def resamples(tensor: TensorProto) -> bool:
    """Whether a constant is a matrix that is mostly zeros: it interpolates or averages neighbours, and is no layer."""
    if tensor.data_type != TensorProto.FLOAT or len(tensor.dims) != 2:
        return False
    values = numpy_helper.to_array(tensor)
    return np.count_nonzero(values) < values.size / 2


def upsampled(facts: Facts, name: str, result: str) -> Blocks | None:
    """The blocks of a value that a ``Resize`` makes, where its channels are crowded.

    Args:
        facts: of the graph.
        name: the value.
        result: how names of what is made begin.

    Returns:
        None for any other value.
    """
    resize = facts.producers.get(name)
    if resize is None or resize.op_type != 'Resize' or not _is_linear(resize):
        return None
    small, large = ([facts.size(value, axis) for axis in range(4)] for value in (resize.input[0], name))
    if facts.rank(name) != 4 or None in small + large or small[:2] != large[:2]:
        return None
    (_, channels, *size), target = small, large[2:]
    if any(2 * extent > wanted for extent, wanted in zip(size, target, strict=True)):
        return None
    width = math.isqrt(4 * BLOCK // channels) | 1  # wider than high: columns are multiplied first, of fewer rows
    height = BLOCK // (channels * width) | 1
    products = width * size[1] / target[1] + height * size[0] / target[0]
    if products > _PRODUCTS or not crowded(math.prod(target), channels):
        return None
    return _make(resize.input[0], *_factors(resize, size, target), height, width, result)


def _is_linear(resize: onnx.NodeProto) -> bool:
    """Whether every pixel is a mean of its neighbours that the sizes alone decide."""
    return (
        len(resize.input) == 4
        and attribute(resize, 'mode') == 'linear'
        and attribute(resize, 'coordinate_transformation_mode', 'half_pixel') != 'tf_crop_and_resize'
        and not attribute(resize, 'antialias', 0)
        and attribute(resize, 'axes') is None
        and attribute(resize, 'keep_aspect_ratio_policy', 'stretch') == 'stretch'
    )


def _factors(resize: onnx.NodeProto, size: Sequence[int], target: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """(H, h) and (w, W) between which any input gives what the node makes of it; found by resizing single pixels."""
    import onnxruntime

    def run(values: np.ndarray, wanted: Sequence[int]) -> np.ndarray:
        node = helper.make_node('Resize', ['x', '', '', 'sizes'], ['y'])
        node.attribute.extend(resize.attribute)
        graph = helper.make_graph(
            [node],
            'resize',
            [helper.make_tensor_value_info('x', TensorProto.FLOAT, values.shape)],
            [helper.make_tensor_value_info('y', TensorProto.FLOAT, None)],
            [numpy_helper.from_array(np.array([1, 1, *wanted], dtype=np.int64), 'sizes')],
        )
        # of 18, which knows attributes that 17 does not, and linear means the same in both
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 18)], ir_version=8)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=['CPUExecutionProvider'])
        return session.run(None, {'x': values})[0][0, 0]

    rows, columns = (np.eye(extent, dtype=np.float32)[None, None] for extent in size)
    return run(rows, (target[0], size[0])), run(columns, (size[1], target[1]))


def _make(source: str, rows: np.ndarray, columns: np.ndarray, height: int, width: int, result: str) -> Blocks:
    blocks, numbers = Blocks([], [], []), {}

    def constant(values: np.ndarray, name: str) -> str:
        blocks.weights.append(numpy_helper.from_array(np.ascontiguousarray(values), f'{result}_{name}'))
        return blocks.weights[-1].name

    def number(value: int) -> str:
        if value not in numbers:
            numbers[value] = constant(np.array([value]), f'number{value}')
        return numbers[value]

    def node(kind: str, inputs: Sequence[str], name: str) -> str:
        blocks.nodes.append(helper.make_node(kind, inputs, [f'{result}_{name}'], name=f'{result}_{name}'))
        return blocks.nodes[-1].output[0]

    def parts(matrix: np.ndarray, size: int) -> Iterator[tuple[slice, np.ndarray]]:
        """Some rows at a time: which of the input they read, and their factors."""
        for start in range(0, len(matrix), size):
            part = matrix[start : start + size]
            needed = part.any(axis=0).nonzero()[0]
            read = slice(int(needed[0]), int(needed[-1]) + 1)
            yield read, part[:, read]

    tall = [(read, constant(part, f'rows{i}')) for i, (read, part) in enumerate(parts(rows, height))]
    for i, (read, part) in enumerate(parts(columns.T, width)):
        values = node('Slice', [source, number(read.start), number(read.stop), number(3)], f'strip{i}')
        right, strip = constant(part.T, f'columns{i}'), []
        for j, (read, left) in enumerate(tall):
            seen = node('Slice', [values, number(read.start), number(read.stop), number(2)], f'part{i}_{j}')
            seen = node('MatMul', [seen, right], f'wide{i}_{j}')
            strip.append(node('MatMul', [left, seen], f'block{i}_{j}'))
        blocks.names.append(strip)
    return blocks
