"""The best class of upsampled logits, where nothing is interpolated that is known before.

Linear upsampling makes every pixel a mean of a few pixels of the map, with weights that are not negative. Where all of
these have the same best class, it is the pixel's too, whatever the weights are. So ArgMax runs over the map, and only
for pixels between different classes are logits interpolated and compared: of a trained model those at the borders of
what it sees, some percent.

The pixels that lie between the same rows and columns of the map are a cell. Sizes are computed in the graph, as they
may be those of any image; of fixed ones ONNX Runtime folds it all. Logits are taken for finite: an infinite one makes
NaN of more pixels than a Resize does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx

from .facts import Facts
from .nodes import Nodes
from .resizes import is_linear, mode_of, position_of

FEWEST = 16
"""Classes, from which on it is about as fast at worst. Logits of 128 x 128 upsampled four times took, without it and
with it, where all cells lie between different classes: 123 and 39 ms of 150 classes, 9 and 9 of 19, 7 and 7 of 16, 4
and 8 of 12; and where a ninth to a sixth do: 123 and 11, 9.5 and 4.5, 9 and 3.5, 5.5 and 3.
"""


class Axis(NamedTuple):
    """How one axis of a map is upsampled.

    Attributes:
        size: of the map, a scalar.
        wanted: pixels, a scalar.
        cells: (wanted,) the cell k of each pixel, which begins with the map's row k - 1; in order.
        weights: (wanted, reach) float32 of the rows that the cell reads.
        reach: how many these are.
        whole: (first slot, one behind the last), where each cell has as many pixels as the next, but half as many the
            first and the last: these read the same row twice, so that any of their slots will do.
    """

    size: str
    wanted: str
    cells: str
    weights: str
    reach: int
    whole: tuple[int, int] | None = None


def resized(op: Nodes, size: str, wanted: str, mode: str) -> Axis:
    """Pixels between two neighbours; computed in whole numbers, so that none falls on the wrong side.

    Args:
        op: takes the nodes.
        size: of the map, a scalar.
        wanted: pixels, a scalar.
        mode: the ``coordinate_transformation_mode``, one of MODES.
    """
    position, one = position_of(op, op.Range(0, wanted, 1), size, wanted, mode)
    cells = op.Div(position, one)
    rest = op.Sub(position, op.Mul(cells, one))
    right = op.Unsqueeze(op.Div(op.Cast(rest, to=1), op.Cast(one, to=1)), [1])
    return Axis(size, wanted, cells, op.Concat(op.Sub(1.0, right), right, axis=1), 2)


def resized_twice(op: Nodes, first: Axis, second: Axis) -> Axis:
    """Of a map that is made larger, and then resized to whatever size.

    If it is made smaller first, more than three of its pixels are needed: then there is no such index as
    ``GatherElements`` is given, which is an error when the file runs, and no wrong answer.
    """
    last = op.Sub(first.wanted, 1)
    above, below = (op.Min(op.Max(op.Sub(second.cells, back), 0), last) for back in (1, 0))
    cells = op.Gather(first.cells, above)
    further = op.Unsqueeze(op.Sub(op.Gather(first.cells, below), cells), [0, 2])
    of_above, of_below = (op.Gather(first.weights, row) for row in (above, below))
    either = op.Concat(*(op.Unsqueeze(op.Pad(of_below, [0, before, 0, 1 - before]), [0]) for before in (0, 1)), axis=0)
    shape = op.Concat([1], op.Unsqueeze(second.wanted, [0]), [3], axis=0)
    of_below = op.Squeeze(op.GatherElements(either, op.Expand(further, shape), axis=0), [0])
    upper, lower = (op.Slice(second.weights, [start], [start + 1], [1]) for start in (0, 1))
    weights = op.Add(op.Mul(upper, op.Pad(of_above, [0, 0, 0, 1])), op.Mul(lower, of_below))
    return Axis(first.size, second.wanted, cells, weights, 3)


class Cells(NamedTuple):
    """The cells of one axis.

    Attributes:
        count: a scalar.
        slots: pixels that the largest has, a scalar.
        reads: (count, reach) rows of the map.
        weights: (count, slots, reach) float32.
        places: (wanted,) where each pixel is among all slots.
    """

    count: str
    slots: str
    reads: str
    weights: str
    places: str


def cells_of(op: Nodes, axis: Axis) -> Cells:
    """The pixels of an axis by cells."""
    count = op.Add(axis.size, 1)
    k = op.Unsqueeze(op.Range(0, op.Add(count, 1), 1), [1])
    first = op.ReduceSum(op.Cast(op.Less(op.Unsqueeze(axis.cells, [0]), k), to=7), [1], keepdims=0)
    begin, end = op.Slice(first, [0], [-1], [0]), op.Slice(first, [1], [np.iinfo(np.int64).max], [0])
    slots = op.ReduceMax(op.Sub(end, begin), keepdims=0)
    pixels = op.Min(op.Add(op.Unsqueeze(begin, [1]), op.Range(0, slots, 1)), op.Sub(axis.wanted, 1))
    rows = op.Add(op.Slice(k, [0], [-1], [0]), list(range(-1, axis.reach - 1)))
    reads = op.Max(op.Min(rows, op.Sub(axis.size, 1)), 0)
    inside = op.Sub(op.Range(0, axis.wanted, 1), op.Gather(begin, axis.cells))
    places = op.Add(op.Mul(axis.cells, slots), inside)
    return Cells(count, slots, reads, op.Gather(axis.weights, pixels), places)


def best_channels(op: Nodes, x: str, channels: int, height: Axis, width: Axis) -> str:
    """(H, W) int64, the best channel of each pixel.

    Args:
        op: takes the nodes.
        x: (1, channels, h, w) float32.
        channels: of it.
        height: how its rows are upsampled.
        width: and its columns.
    """
    corners = height.reach * width.reach
    rows, columns = cells_of(op, height), cells_of(op, width)
    logits = op.Reshape(op.Transpose(x, perm=[0, 2, 3, 1]), [-1, channels])
    labels = op.ArgMax(logits, axis=1, keepdims=0)
    grid = op.Add(
        op.Unsqueeze(op.Mul(rows.reads, width.size), [1, 3]),
        op.Unsqueeze(columns.reads, [0, 2]),
    )
    reads = op.Cast(op.Reshape(grid, [-1, corners]), to=6)  # int32: of a fixed size it is a constant of the file
    seen = op.Gather(labels, reads)
    label = op.Slice(seen, [0], [1], [1])
    others = op.ReduceSum(op.Cast(op.Not(op.Equal(seen, label)), to=7), [1], keepdims=0)
    mixed = op.Squeeze(op.NonZero(op.Greater(others, 0)), [0])
    row = op.Div(mixed, columns.count)
    column = op.Sub(mixed, op.Mul(row, columns.count))
    slots = op.Unsqueeze(op.Mul(rows.slots, columns.slots), [0])
    # of each axis for all slots and corners of a cell, so that those of a cell are a plain product
    wide = op.Concat([1, 1], op.Unsqueeze(columns.slots, [0]), [1, width.reach], axis=0)
    tall = op.Concat([1], op.Unsqueeze(rows.slots, [0]), [1, height.reach, 1], axis=0)
    factors = [
        op.Gather(op.Reshape(op.Expand(weights, extent), op.Concat([-1], slots, [corners], axis=0)), cell)
        for weights, extent, cell in (
            (op.Unsqueeze(rows.weights, [2, 4]), wide, row),
            (op.Unsqueeze(columns.weights, [1, 3]), tall, column),
        )
    ]
    weights = op.Mul(*factors)
    best = op.ArgMax(op.MatMul(weights, op.Gather(logits, op.Gather(reads, mixed))), axis=2, keepdims=0)
    every = op.Expand(label, op.Concat([1], slots, axis=0))
    every = op.ScatterND(every, op.Unsqueeze(mixed, [1]), best)
    sizes = [op.Unsqueeze(size, [0]) for size in (rows.count, columns.count, rows.slots, columns.slots)]
    tiles = op.Transpose(op.Reshape(every, op.Concat(*sizes, axis=0)), perm=[0, 2, 1, 3])
    extent = op.Concat(op.Mul(sizes[0], sizes[2]), op.Mul(sizes[1], sizes[3]), axis=0)
    tiles = op.Reshape(tiles, extent)
    if height.whole and width.whole:
        return op.Slice(tiles, *zip(height.whole, width.whole, strict=True), [0, 1])
    return op.Gather(op.Gather(tiles, rows.places), columns.places, axis=1)


def upsampled(facts: Facts, name: str) -> tuple[str, list[onnx.NodeProto]] | None:
    """The map that a value is upsampled from, linearly, and by which nodes, in their order.

    Returns:
        None where it is not, or where it is not worth it: few channels, a fixed size that is hardly larger, or, of a
        map that is not upsampled before, one that the values of an input give: this map is as large as the image.
    """
    resizes: list[onnx.NodeProto] = []
    while len(resizes) < 2 and (node := facts.producers.get(name)) is not None and is_linear(node):
        resizes.insert(0, node)
        name = node.input[0]
    channels = facts.size(name, 1)
    if not resizes or facts.rank(name) != 4 or facts.size(name, 0) != 1 or channels is None or channels < FEWEST:
        return None
    for node, least in zip(resizes, (3, 0), strict=False):
        sizes = [(facts.size(node.input[0], axis), facts.size(node.output[0], axis)) for axis in (2, 3)]
        if any(None not in pair and pair[1] < least * pair[0] for pair in sizes):
            return None
    if len(resizes) == 1 and facts.reads_values(resizes[0].input[3]):
        return None
    return name, resizes


def best_of(facts: Facts, name: str, prefix: str) -> tuple[Nodes, str] | None:
    """What gives the best channel of a value that is upsampled, without upsampling it.

    Args:
        facts: of the graph.
        name: the value, (1, C, H, W).
        prefix: of the names of what is made.

    Returns:
        Nodes, and the name of their (H, W) int64; None for any other value.
    """
    found = upsampled(facts, name)
    if found is None:
        return None
    source, resizes = found
    op = Nodes(prefix)
    shape = op.Shape(source)
    axes = []
    for axis in (2, 3):
        tables, size = [], op.Gather(shape, axis)
        for node in resizes:
            wanted = op.Gather(node.input[3], axis)
            mode = mode_of(node)
            tables.append(resized(op, size, wanted, mode))
            size = wanted
        axes.append(resized_twice(op, *tables) if len(tables) > 1 else _as_whole(facts, resizes[0], axis, tables[0]))
    return op, best_channels(op, source, facts.size(source, 1), *axes)


def _as_whole(facts: Facts, node: onnx.NodeProto, axis: int, table: Axis) -> Axis:
    size, wanted = (facts.size(value, axis) for value in (node.input[0], node.output[0]))
    mode = mode_of(node)
    if size is None or wanted is None or wanted % size or mode == 'align_corners':
        return table
    start = -(-(wanted // size) // 2)
    return table._replace(whole=(start, start + wanted))
