"""Small rules that make a graph cheaper and change no value of its answer. Pattern next to replacement.

ONNX Runtime's own optimizer does none of these; each is from a measured graph, and the number with it says what it
saves there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .blocks import upsampled
from .facts import Facts, known_shapes
from .graphs import attribute, copy_node, reads, set_nodes


class Replacement(NamedTuple):
    """A node, what stands for it, and the constants that this needs."""

    node: onnx.NodeProto
    nodes: list[onnx.NodeProto]
    weights: Sequence[onnx.TensorProto] = ()


def first_of_one(facts: Facts) -> Iterator[Replacement]:
    """``Gather(x, 0)`` along an axis of one element -> ``Squeeze(x)``, which copies nothing (YOLOX-nano: 80 us)."""
    for node in facts.nodes:
        if node.op_type != 'Gather':
            continue
        index, axis = facts.constant(node.input[1]), attribute(node, 'axis', 0)
        if index is None or index.shape != () or index not in (0, -1) or facts.size(node.input[0], axis) != 1:
            continue
        axes = numpy_helper.from_array(np.array([axis], dtype=np.int64), f'{node.output[0]}_axes')
        squeeze = helper.make_node('Squeeze', [node.input[0], axes.name], [node.output[0]], name=node.name)
        yield Replacement(node, [squeeze], [axes])


def best_of_chosen(facts: Facts) -> Iterator[Replacement]:
    """``Gather(ArgMax(x, 1), rows)`` -> ``ArgMax(Gather(x, rows), 1)``: labels of the rows that are left, not of all
    (YOLOX-nano: 220 us).
    """
    for node in facts.nodes:
        best = facts.producers.get(node.input[0]) if node.op_type == 'Gather' else None
        if best is None or best.op_type != 'ArgMax' or facts.only_reader(best.output[0]) is not node:
            continue
        rank = facts.rank(best.input[0])
        if rank != 2 or attribute(node, 'axis', 0) != 0 or attribute(best, 'axis', 0) not in (1, -1):
            continue
        if facts.rank(node.input[1]) != 1 or node.input[1] == best.output[0]:
            continue
        rows = f'{node.output[0]}_rows'
        later = copy_node(best)
        later.input[0], later.output[0] = rows, node.output[0]
        yield Replacement(node, [helper.make_node('Gather', [best.input[0], node.input[1]], [rows], axis=0), later])


def best_of_parts(facts: Facts) -> Iterator[Replacement]:
    """``ArgMax(Concat(parts))`` along another axis -> ``Concat(ArgMax(part))``: each part is read while it is in the
    cache, and the whole is never written (SegFormer-b0 in windows, 150 classes, 512 x 1024: 180 of 360 ms). What is
    upsampled is made in parts for it (SegFormer-b0, 512 x 512: 80 of 250 ms).
    """
    for node in facts.nodes:
        if node.op_type != 'ArgMax':
            continue
        whole, squeezed = facts.producers.get(node.input[0]), None
        if whole is not None and whole.op_type == 'Squeeze':
            whole, squeezed = facts.producers.get(whole.input[0]), whole
        rank = None if whole is None else facts.rank(whole.output[0])
        axes = [] if squeezed is None else facts.constant(squeezed.input[1]) if len(squeezed.input) > 1 else None
        if rank is None or axes is None:
            continue
        gone = {int(axis) % rank for axis in axes}
        if len(gone) == rank:
            continue
        made = _Best(facts, node, squeezed, rank, gone)
        made.of(whole.output[0], node.output[0])
        if made.nodes[-1].op_type == 'Concat':
            yield Replacement(node, made.nodes, made.weights)


class _Best:
    """An ArgMax over the parts of a value.

    Args:
        facts: of the graph.
        node: the ArgMax.
        squeezed: the Squeeze before it.
        rank: of the value.
        gone: axes of the value that the Squeeze takes.

    Attributes:
        nodes: what stands for it, in order.
        weights: that these need.
    """

    def __init__(
        self, facts: Facts, node: onnx.NodeProto, squeezed: onnx.NodeProto | None, rank: int, gone: set[int]
    ) -> None:
        self.facts, self.node, self.squeezed = facts, node, squeezed
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        left = [axis for axis in range(rank) if axis not in gone]
        self._over = left[attribute(node, 'axis', 0) % len(left)]
        kept = left if attribute(node, 'keepdims', 1) else [axis for axis in left if axis != self._over]
        self._places = {axis: place for place, axis in enumerate(kept) if axis != self._over}
        self._rank = rank

    def of(self, value: str, result: str) -> str:
        """Choose from a value, part by part where it has parts; gives back the name of the result."""
        join = self.facts.producers.get(value)
        if join is not None and join.op_type == 'Concat' and len(join.input) > 1:
            place = self._places.get(attribute(join, 'axis') % self._rank)
            if place is not None:
                return self._joined(join.input, result, place)
        if self._over == 1 and {2, 3} <= self._places.keys():
            blocks = upsampled(self.facts, value, result)
            if blocks is not None:
                self.nodes += blocks.nodes
                self.weights += blocks.weights
                strips = [
                    self._joined(strip, f'{result}_best{index}', self._places[2])
                    for index, strip in enumerate(blocks.names)
                ]
                return self._add(helper.make_node('Concat', strips, [result], axis=self._places[3]))
        if self.squeezed is not None:
            value = self._add(helper.make_node('Squeeze', [value, self.squeezed.input[1]], [f'{result}_of']))
        later = copy_node(self.node)
        later.input[0], later.output[0] = value, result
        later.name = result  # torch numbers the names of its nodes as well: '/ArgMax_1' is another one
        return self._add(later)

    def _joined(self, parts: Sequence[str], result: str, place: int) -> str:
        chosen = [self.of(part, f'{result}_best{index}') for index, part in enumerate(parts)]
        return self._add(helper.make_node('Concat', chosen, [result], axis=place))

    def _add(self, node: onnx.NodeProto) -> str:
        self.nodes.append(node)
        return node.output[0]


RULES: list[Callable[[Facts], Iterator[Replacement]]] = [first_of_one, best_of_chosen, best_of_parts]


def apply_rules(model: onnx.ModelProto, shapes: Mapping[str, Sequence[Any]] | None = None) -> onnx.ModelProto:
    """The graph with every rule applied wherever it fits.

    Args:
        model: with its constants folded; is not changed.
        shapes: see :func:`known_shapes`, where somebody has them already.

    Returns:
        ``model`` itself when no rule fits.
    """
    # once, as this takes longer than the rules; what a rule makes keeps its name and shape
    shapes = known_shapes(model) if shapes is None else shapes
    for rule in RULES:
        replaced = {found.node.output[0]: found for found in rule(Facts(model, shapes))}
        if not replaced:
            continue
        result = onnx.ModelProto()
        result.CopyFrom(model)
        found = [replaced.get(next(iter(node.output), '')) for node in model.graph.node]
        pairs = zip(model.graph.node, found, strict=True)
        set_nodes(result.graph, [new for node, other in pairs for new in (other.nodes if other else [node])])
        result.graph.initializer.extend(tensor for other in replaced.values() for tensor in other.weights)
        model = drop_unread(result)
    return model


def drop_unread(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph without nodes whose results nobody reads, in place."""
    graph = model.graph
    wanted = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted |= reads(node)
    set_nodes(graph, reversed(kept))
    weights = [tensor for tensor in graph.initializer if tensor.name in wanted]
    del graph.initializer[:]
    graph.initializer.extend(weights)
    return model
