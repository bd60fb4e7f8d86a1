"""Convolutions of 3 x 3 by Winograd's algorithm, with half of the multiplications.

Four rows of a result are made of six rows that are read. Written as products of polynomials, these take six products
of numbers where the definition takes twelve: one at each of six points, as many as determine the product. What is
multiplied are sums, of rows on one side and of taps on the other::

    t = B' rows          six depthwise convolutions over groups of rows, four rows apart
    u = G taps           of the weights; a runtime computes it once, when it loads the file
    m = t * u            six convolutions of 1 x 3, each for a fourth of the rows
    rows of the result = A' m

Columns are convolved as before. It answers the same up to rounding, which is 1.5 to 1.9 times that of ONNX Runtime's
own convolutions (64 to 2048 channels, root mean square, normal numbers); with the points 0, +-1, +-2 and infinity,
which others take, it would be 1.4 times as much again. Rows of one group round alike: beside a row of numbers that are
much larger than its own, a row is less exact than by the definition. What is infinite or no number makes NaN of four or
eight rows of the result, where by the definition it is up to three.

Sources: S. Winograd, Arithmetic Complexity of Computations, 1980; A. Lavin and S. Gray, Fast Algorithms for
Convolutional Neural Networks, 2015, arXiv:1509.09308; on the choice of points B. Barabasz et al., Error Analysis and
Improving the Accuracy of Winograd Convolution for Deep Neural Networks, 2018, arXiv:1803.10986.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import onnx

from .facts import Facts
from .graphs import attribute, copy_node
from .nodes import Nodes

ROWS = 4
"""Of the result, that are made at a time."""

TAPS = 3
READ = ROWS + TAPS - 1

SUMMED = 90
"""Multiplications in the time in which an element that is read is put into the six sums: 0.5 to 0.9 ns, where
convolutions do 110 per ns (96 to 256 channels, 80 x 80 to 200 x 336, 2 cores).
"""

MADE = 180
"""The same for an element of the result, which is made of six: 1.1 to 1.9 ns."""

SPREAD = 200
"""The same for an element that is read, for rows that lie apart to be put side by side."""

NODES = 1e7
"""The same for the operators themselves, however small they are."""

LESS = 1.15
"""By how much less work it must be."""

_ACTIVATIONS = ('Relu', 'LeakyRelu')


class Transforms(NamedTuple):
    """The matrices of the algorithm, float64.

    Attributes:
        rows: B', (6, 6): of the rows that are read.
        taps: G, (6, 3): of the kernel's.
        result: A', (4, 6): of the six products.
        constant: (6,): what is to be added to the six for 1 to be added to the result.
    """

    rows: np.ndarray
    taps: np.ndarray
    result: np.ndarray
    constant: np.ndarray


def transforms() -> Transforms:
    """Toom and Cook's: evaluate two polynomials at points, multiply, interpolate; and transpose, as the rows of the
    result are what one of the factors would be.
    """
    half = math.sqrt(0.5)
    points = (0.0, half, -half, 2 * half, -2 * half)  # few large and few small powers of them

    def powers(count: int) -> np.ndarray:
        last = [0.0] * (count - 1) + [1.0]  # at infinity only the highest power counts
        return np.array([[point**power for power in range(count)] for point in points] + [last])

    result = powers(ROWS).T
    constant = np.linalg.lstsq(result, np.ones(ROWS), rcond=None)[0]
    rows = np.linalg.inv(powers(READ)).T
    # in their last places these depend on the processor, and zeros would not be zeros
    return Transforms(rows.round(12) + 0.0, powers(TAPS), result, constant.round(12) + 0.0)


class Kernel(NamedTuple):
    """A convolution of 3 x 3.

    Attributes:
        inside: channels that are read.
        outside: channels of the result.
        dilations: (y, x).
        pads: above, left, below, right.
    """

    inside: int
    outside: int
    dilations: tuple[int, int]
    pads: tuple[int, int, int, int]


def gain(kernel: Kernel, rows: int, columns: int) -> float:
    """How many multiplications it saves.

    Args:
        kernel: that reads a map.
        rows: of the map.
        columns: of the map.
    """
    apart, (above, _, below, _) = kernel.dilations[0], kernel.pads
    made = rows + above + below - (TAPS - 1) * apart
    # rows of zeros around the map are not multiplied
    seen = sum(min(rows, made + tap * apart - above) - max(0, tap * apart - above) for tap in range(TAPS))
    groups = -(-made // (apart * ROWS)) * apart
    dense = kernel.inside * kernel.outside * TAPS * columns
    put = SUMMED + (SPREAD if apart > 1 else 0)
    after = dense * READ * groups + (put * kernel.inside * rows + MADE * kernel.outside * groups * ROWS) * columns
    return dense * seen - LESS * (after + NODES)


def faster_convolutions(facts: Facts) -> Iterator[tuple[onnx.NodeProto, Nodes]]:
    """Convolutions that take less time by Winograd's algorithm, each with the activation behind it where that is
    simple: what is replaced, and nodes of which the last one gives the same result.
    """
    shared = _Shared()
    places = {node.output[0]: place for place, node in enumerate(facts.nodes) if node.output}
    found = []
    for node in facts.nodes:
        kernel = _kernel(facts, node) if node.op_type == 'Conv' else None
        sizes = [facts.usual_size(node.input[0], axis) for axis in (2, 3)] if kernel is not None else [None]
        if None not in sizes and gain(kernel, *sizes) > 0:
            behind = facts.only_reader(node.output[0])
            replaced = behind if behind is not None and behind.op_type in _ACTIVATIONS else node
            found.append((places[replaced.output[0]], node, kernel, replaced))
    for *_, node, kernel, replaced in sorted(found, key=itemgetter(0)):  # one makes what those behind it share
        op = Nodes(node.output[0])
        products = _products(facts, node, kernel, op, shared)
        _result(facts, node, kernel, None if replaced is node else replaced, op, products, shared.matrices.result)
        yield replaced, op


def _kernel(facts: Facts, node: onnx.NodeProto) -> Kernel | None:
    weights = facts.weights(node.input[1])
    dilations = attribute(node, 'dilations', [1, 1])
    pads = attribute(node, 'pads', [0] * 4)
    if (
        weights is None
        or weights.data_type != onnx.TensorProto.FLOAT
        or list(weights.dims[2:]) != [TAPS, TAPS]
        or list(attribute(node, 'strides', [1, 1])) != [1, 1]
        or attribute(node, 'group', 1) != 1
        or attribute(node, 'auto_pad', 'NOTSET') != 'NOTSET'
        or pads[0] % dilations[0]
        or pads[2] % dilations[0]
    ):
        return None
    return Kernel(weights.dims[1], weights.dims[0], tuple(dilations), tuple(pads))


class _Shared:
    """What several convolutions read: two towers of a head the same map, levels of a pyramid the same weights."""

    def __init__(self) -> None:
        self.matrices = transforms()
        self.layers: dict[int, list[str]] = {}
        self.sums: dict[tuple[str, int, int, int], list[str]] = {}
        self.kernels: dict[str, list[str]] = {}
        self.biases: dict[str, list[str]] = {}


def _products(facts: Facts, node: onnx.NodeProto, kernel: Kernel, op: Nodes, shared: _Shared) -> list[str]:
    """The six products of sums: (N, O, rows, w) each."""
    value, weights = node.input[:2]
    bias = next((name for name in node.input[2:] if name), '')
    (_, left, _, right), (_, beside) = kernel.pads, kernel.dilations
    sums = _sums(facts, value, kernel, op, shared)
    if weights not in shared.kernels:
        shared.kernels[weights] = _weighted(op, weights, kernel, shared.matrices.taps)
    read = [sums, shared.kernels[weights]]
    if bias:
        if bias not in shared.biases:
            added = op.Mul(op.constant(shared.matrices.constant.astype(np.float32)[:, None], 'constant'), bias)
            shared.biases[bias] = [op.Gather(added, place, axis=0) for place in range(READ)]
        read.append(shared.biases[bias])
    return [op.Conv(*each, pads=[0, left, 0, right], dilations=[1, beside]) for each in zip(*read, strict=True)]


def _sums(facts: Facts, value: str, kernel: Kernel, op: Nodes, shared: _Shared) -> list[str]:
    """The six sums of the rows that are read: (N, C, rows, w) each."""
    (above, _, below, _), (apart, _), channels = kernel.pads, kernel.dilations, kernel.inside
    key = (value, above, below, apart)
    if key in shared.sums:
        return shared.sums[key]
    if channels not in shared.layers:
        shared.layers[channels] = [
            op.constant(np.broadcast_to(row.astype(np.float32)[:, None], (channels, 1, READ, 1)), f'rows{place}')
            for place, row in enumerate(shared.matrices.rows)
        ]
    if apart > 1:  # rows so far apart under each other, those between them side by side
        value = _apart(facts, value, apart, op)
    # so many rows of zeros below that the last group is whole, whatever the height
    pads = [above // apart, 0, below // apart + ROWS - 1, 0]
    sums = [op.Conv(value, layer, group=channels, strides=[ROWS, 1], pads=pads) for layer in shared.layers[channels]]
    if apart > 1:
        size = op.Mul(op.Div(_sizes_of(op, sums[0]), [1, apart]), [apart, 1])
        sums = [op.Reshape(each, op.Concat([0, 0], size, axis=0)) for each in sums]
    shared.sums[key] = sums
    return sums


def _sizes_of(op: Nodes, value: str) -> str:
    """Height and width, never as -1: there may be no image, as there may be no region."""
    return op.Slice(op.Shape(value), [2], [4])


def _apart(facts: Facts, value: str, apart: int, op: Nodes) -> str:
    """(N, C, h / apart, apart * w), with rows of zeros below where there are not enough."""
    if (facts.size(value, 2) or 1) % apart:
        missing = op.Mod(op.Neg(_sizes_of(op, value)), [apart, 1])
        value = op.Pad(value, op.Concat([0] * 6, missing, axis=0))
    size = op.Mul(op.Div(_sizes_of(op, value), [apart, 1]), [1, apart])
    return op.Reshape(value, op.Concat([0, 0], size, axis=0))


def _weighted(op: Nodes, weights: str, kernel: Kernel, matrix: np.ndarray) -> list[str]:
    """The six sums of the taps of each column: (O, C, 1, 3) each."""
    flat = op.Reshape(weights, [-1, TAPS * TAPS])
    columns = np.eye(TAPS)
    return [
        op.Reshape(
            op.MatMul(flat, op.constant(np.kron(taps[:, None], columns).astype(np.float32), f'taps{place}')),
            [kernel.outside, kernel.inside, 1, TAPS],
        )
        for place, taps in enumerate(matrix)
    ]


def _result(
    facts: Facts,
    node: onnx.NodeProto,
    kernel: Kernel,
    activation: onnx.NodeProto | None,
    op: Nodes,
    products: list[str],
    matrix: np.ndarray,
) -> None:
    """The rows of the result, of the six products."""
    apart, (above, _, below, _) = kernel.dilations[0], kernel.pads
    batch, channels, rows, columns = (facts.size(node.output[0], axis) for axis in range(4))
    fixed = None not in (batch, channels, rows, columns)
    matrix = op.constant(matrix.astype(np.float32), 'result')
    together = op.Concat(*products, axis=1)
    if fixed:
        groups = -(-rows // (ROWS * apart))
        split = [batch, ROWS, channels, groups, apart * columns]
        whole = [batch, channels, groups * ROWS * apart, columns]
        flat = [READ, -1] if batch == 1 else [batch, READ, -1]
    else:
        shape, size = op.Shape(products[0]), _sizes_of(op, products[0])
        images = op.Slice(shape, [0], [1])
        if apart > 1:
            size = op.Mul(op.Div(size, [apart, 1]), [1, apart])
        split = op.Concat(images, [ROWS, kernel.outside], size, axis=0)
        whole = op.Mul(shape, [1, 1, ROWS, 1])
        pixels = op.Mul(op.Slice(size, [0], [1]), op.Slice(size, [1], [2]))
        flat = op.Concat(images, [READ], op.Mul(pixels, [kernel.outside]), axis=0)
    multiply = op.Gemm if fixed and batch == 1 else op.MatMul  # activations are fused into Gemm
    made = multiply(matrix, op.Reshape(together, flat))
    if activation is not None:
        active = copy_node(activation)
        active.name = active.output[0] = f'{made}_{activation.op_type}'
        active.input[0] = made
        op.nodes.append(active)
        made = active.output[0]
    made = op.Reshape(op.Transpose(op.Reshape(made, split), perm=[0, 2, 3, 1, 4]), whole)
    if not fixed:
        height = op.Slice(op.Shape(node.input[0]), [2], [3])
        op.Slice(made, [0], op.Add(height, [above + below - (TAPS - 1) * apart]), [2])
    elif rows % (ROWS * apart):
        op.Slice(made, [0], [rows], [2])
