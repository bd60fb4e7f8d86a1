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

from .agreement import best_of
from .facts import Facts, known_shapes
from .graphs import attribute, copy_node, reads, set_nodes
from .nodes import Nodes
from .resizes import gives_sizes, is_linear
from .upsampled_conv import convolved_early
from .winograd import faster_convolutions


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


class _Best(NamedTuple):
    """An ArgMax, or one behind a Squeeze.

    Attributes:
        node: the ArgMax.
        squeezed: the Squeeze before it.
        value: of which it chooses, before the Squeeze.
        over: the axis of the value that it goes over.
        kept: the axes of the value that the result has, ``over`` among them where its one element is kept.
        rank: of the value.
    """

    node: onnx.NodeProto
    squeezed: onnx.NodeProto | None
    value: str
    over: int
    kept: list[int]
    rank: int


def _every_best(facts: Facts) -> Iterator[_Best]:
    for node in facts.nodes:
        if node.op_type != 'ArgMax' or attribute(node, 'select_last_index', 0):
            continue
        value, squeezed = node.input[0], facts.producers.get(node.input[0])
        if squeezed is None or squeezed.op_type != 'Squeeze':
            squeezed = None
        else:
            value = squeezed.input[0]
        rank = facts.rank(value)
        axes = [] if squeezed is None else facts.constant(squeezed.input[1]) if len(squeezed.input) > 1 else None
        if rank is None or axes is None:
            continue
        left = [axis for axis in range(rank) if axis not in {int(gone) % rank for gone in axes}]
        if left:
            over = left[attribute(node, 'axis', 0) % len(left)]
            kept = left if attribute(node, 'keepdims', 1) else [axis for axis in left if axis != over]
            yield _Best(node, squeezed, value, over, kept, rank)


def best_of_parts(facts: Facts) -> Iterator[Replacement]:
    """``ArgMax(Concat(parts))`` along another axis -> ``Concat(ArgMax(part))``: each part is read while it is in the
    cache, and the whole is never written (SegFormer-b0 in windows, 150 classes, 512 x 1024: 180 of 360 ms).
    """
    for best in _every_best(facts):
        nodes: list[onnx.NodeProto] = []
        _best_of(facts, best, best.value, best.node.output[0], nodes)
        if nodes[-1].op_type == 'Concat':
            yield Replacement(best.node, nodes)


def _best_of(facts: Facts, best: _Best, value: str, result: str, nodes: list[onnx.NodeProto]) -> str:
    """Choose from a value, part by part where it has parts; gives back the name of the result."""
    join = facts.producers.get(value)
    if join is not None and join.op_type == 'Concat' and len(join.input) > 1:
        axis = attribute(join, 'axis') % best.rank
        if axis in best.kept and axis != best.over:
            parts = [
                _best_of(facts, best, part, f'{result}_best{index}', nodes) for index, part in enumerate(join.input)
            ]
            nodes.append(helper.make_node('Concat', parts, [result], axis=best.kept.index(axis)))
            return result
    if best.squeezed is not None:
        nodes.append(helper.make_node('Squeeze', [value, best.squeezed.input[1]], [f'{result}_of']))
        value = f'{result}_of'
    later = copy_node(best.node)
    later.input[0], later.output[0] = value, result
    later.name = result  # torch numbers the names of its nodes as well: '/ArgMax_1' is another one
    nodes.append(later)
    return result


def best_of_upsampled(facts: Facts) -> Iterator[Replacement]:
    """``ArgMax(Resize(x))``, or of two, without the Resize: see :mod:`~mmdeploy_lite.export.agreement`."""
    for best in _every_best(facts):
        if best.over != 1 or not {2, 3} <= {*best.kept}:
            continue
        result = best.node.output[0]
        made = best_of(facts, best.value, result)
        if made is None:
            continue
        op, chosen = made
        ones = [place for place, axis in enumerate(best.kept) if axis < 2]
        last = op.Unsqueeze(chosen, ones) if ones else chosen
        op.nodes.append(helper.make_node('Identity', [last], [result]))
        yield Replacement(best.node, op.nodes, op.weights)


def size_of_resized(facts: Facts) -> Iterator[Replacement]:
    """``Shape(Resize(x, sizes))`` -> ``sizes``: else what nobody reads otherwise is made to be measured (the logits of
    SegFormer-b0 at any size, 512 x 512 of 150 classes: 30 of 200 ms).
    """
    for node in facts.nodes:
        resize = facts.producers.get(node.input[0]) if node.op_type == 'Shape' else None
        if resize is None or not gives_sizes(resize):
            continue
        ends = [attribute(node, 'start', 0), attribute(node, 'end', np.iinfo(np.int64).max)]
        op = Nodes(node.output[0])
        op.nodes.append(
            helper.make_node('Slice', [resize.input[3], *(op.number([end]) for end in ends)], [node.output[0]])
        )
        yield Replacement(node, op.nodes, op.weights)


def same_size(facts: Facts) -> Iterator[Replacement]:
    """``Resize(x)`` to the size that it has -> ``x``: decode heads bring all maps to one size, the largest too."""
    for node in facts.nodes:
        if not is_linear(node):
            continue
        before, after = ([facts.size(name, axis) for axis in range(4)] for name in (node.input[0], node.output[0]))
        if None not in before and before == after:
            yield Replacement(node, [helper.make_node('Identity', [node.input[0]], [node.output[0]])])


def convolved_before(facts: Facts) -> Iterator[Replacement]:
    """``Conv(Resize(x))`` -> ``Resize(Conv(x))``: see :mod:`~mmdeploy_lite.export.upsampled_conv`."""
    for node, op, result in convolved_early(facts):
        op.nodes.append(helper.make_node('Identity', [result], [node.output[0]]))
        yield Replacement(node, op.nodes, op.weights)


def by_winograd(facts: Facts) -> Iterator[Replacement]:
    """``Conv`` of 3 x 3 -> half of the multiplications: see :mod:`~mmdeploy_lite.export.winograd`."""
    for node, op in faster_convolutions(facts):
        op.nodes[-1].output[0] = node.output[0]
        yield Replacement(node, op.nodes, op.weights)


Rule = Callable[[Facts], Iterator[Replacement]]

RULES: list[Rule] = [first_of_one, best_of_chosen, best_of_parts]

UNFOLDED: list[Rule] = [size_of_resized, same_size, convolved_before, best_of_upsampled]
"""Those that compute with sizes, which are to be folded afterwards."""


def apply_rules(
    model: onnx.ModelProto,
    shapes: Mapping[str, Sequence[Any]] | None = None,
    rules: Sequence[Rule] = tuple(RULES),
    usual: Callable[[], Mapping[str, Sequence[Any]]] | None = None,
    aside: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """The graph with every rule applied wherever it fits.

    Args:
        model: with its constants folded; is not changed.
        shapes: see :func:`known_shapes`, where somebody has them already.
        rules: of the ones above.
        usual: see :class:`Facts`.
        aside: see :class:`Facts`.

    Returns:
        ``model`` itself when no rule fits.
    """
    # once, as this takes longer than the rules; what a rule makes keeps its name and shape
    shapes = known_shapes(model) if shapes is None else shapes
    facts = Facts(model, shapes, usual, aside)
    for rule in rules:
        replaced = {found.node.output[0]: found for found in rule(facts)}
        if not replaced:
            continue
        result = onnx.ModelProto()
        result.CopyFrom(model)
        found = [replaced.get(next(iter(node.output), '')) for node in model.graph.node]
        pairs = zip(model.graph.node, found, strict=True)
        set_nodes(result.graph, [new for node, other in pairs for new in (other.nodes if other else [node])])
        result.graph.initializer.extend(tensor for other in replaced.values() for tensor in other.weights)
        model = drop_unread(result)
        facts = Facts(model, shapes, usual, aside)
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
