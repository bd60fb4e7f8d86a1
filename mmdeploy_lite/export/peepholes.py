"""Small rules that make a graph cheaper and change no value of its answer. Pattern next to replacement.

ONNX Runtime's own optimizer does none of these; each is from a measured graph, and the number with it says what it
saves there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import onnx
from onnx import helper, numpy_helper

from .graphs import reads

Replacement = tuple[onnx.NodeProto, list[onnx.NodeProto]]


class Graph:
    """What the rules ask of a graph.

    Args:
        model: the graph.
        shapes: of values, by their names, as far as they are known.
    """

    def __init__(self, model: onnx.ModelProto, shapes: Mapping[str, Sequence[Any]]) -> None:
        graph = model.graph
        self.nodes = list(graph.node)
        self.producers = {name: node for node in graph.node for name in node.output}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in reads(node):
                self.readers.setdefault(name, []).append(node)
        self.outputs = {value.name for value in graph.output}
        self._weights = {tensor.name: tensor for tensor in graph.initializer}
        self._shapes = shapes
        self.new_weights: list[onnx.TensorProto] = []

    def constant(self, name: str) -> Any:
        """A small constant as a NumPy array, or None."""
        tensor = self._weights.get(name)
        node = self.producers.get(name)
        if tensor is None and node is not None and node.op_type == 'Constant' and node.attribute[0].name == 'value':
            tensor = node.attribute[0].t
        return None if tensor is None else numpy_helper.to_array(tensor)

    def rank(self, name: str) -> int | None:
        """How many axes a value has; None where that is not known."""
        if name in self._weights:
            return len(self._weights[name].dims)
        return len(self._shapes[name]) if name in self._shapes else None

    def is_one(self, name: str, axis: int) -> bool:
        """Whether a value has a single element along an axis, for every image."""
        dims = self._shapes.get(name)
        return dims is not None and -len(dims) <= axis < len(dims) and dims[axis].dim_value == 1

    def only_reader(self, name: str) -> onnx.NodeProto | None:
        """The one node that reads a value, if there is just one and the graph does not give the value out."""
        readers = self.readers.get(name, ())
        return readers[0] if len(readers) == 1 and name not in self.outputs else None

    def add_weight(self, name: str, values: Any) -> str:
        """A new constant."""
        self.new_weights.append(numpy_helper.from_array(values, name))
        return name


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """The value of a node's attribute."""
    return next((helper.get_attribute_value(item) for item in node.attribute if item.name == name), default)


def first_of_one(graph: Graph) -> Iterator[Replacement]:
    """``Gather(x, 0)`` along an axis of one element -> ``Squeeze(x)``, which copies nothing (YOLOX-nano: 80 us)."""
    import numpy as np

    for node in graph.nodes:
        if node.op_type != 'Gather':
            continue
        index, axis = graph.constant(node.input[1]), attribute(node, 'axis', 0)
        if index is None or index.shape != () or index not in (0, -1) or not graph.is_one(node.input[0], axis):
            continue
        axes = graph.add_weight(f'{node.output[0]}_axes', np.array([axis], dtype=np.int64))
        yield node, [helper.make_node('Squeeze', [node.input[0], axes], [node.output[0]], name=node.name)]


def best_of_chosen(graph: Graph) -> Iterator[Replacement]:
    """``Gather(ArgMax(x, 1), rows)`` -> ``ArgMax(Gather(x, rows), 1)``: labels of the rows that are left, not of all
    (YOLOX-nano: 220 us).
    """
    for node in graph.nodes:
        best = graph.producers.get(node.input[0]) if node.op_type == 'Gather' else None
        if best is None or best.op_type != 'ArgMax' or graph.only_reader(best.output[0]) is not node:
            continue
        rank = graph.rank(best.input[0])
        if rank != 2 or attribute(node, 'axis', 0) != 0 or attribute(best, 'axis', 0) not in (1, -1):
            continue
        if graph.rank(node.input[1]) != 1 or node.input[1] == best.output[0]:
            continue
        rows = f'{node.output[0]}_rows'
        later = onnx.NodeProto()
        later.CopyFrom(best)
        later.input[0], later.output[0] = rows, node.output[0]
        yield node, [helper.make_node('Gather', [best.input[0], node.input[1]], [rows], axis=0), later]


def best_of_parts(graph: Graph) -> Iterator[Replacement]:
    """``ArgMax(Concat(parts))`` along another axis -> ``Concat(ArgMax(part))``: each part is read while it is in the
    cache, and the whole is never written (SegFormer-b0 in windows, 150 classes, 512 x 1024: 180 of 360 ms).
    """
    for node in graph.nodes:
        if node.op_type != 'ArgMax':
            continue
        whole, squeezed = graph.producers.get(node.input[0]), None
        if whole is not None and whole.op_type == 'Squeeze':
            whole, squeezed = graph.producers.get(whole.input[0]), whole
        if whole is None or whole.op_type != 'Concat' or len(whole.input) < 2:
            continue
        rank = graph.rank(whole.output[0])
        axes = [] if squeezed is None else graph.constant(squeezed.input[1]) if len(squeezed.input) > 1 else None
        if rank is None or axes is None:
            continue
        axes = sorted(int(axis) % rank for axis in axes)
        left = [axis for axis in range(rank) if axis not in axes]
        joined, best = attribute(whole, 'axis') % rank, left[attribute(node, 'axis', 0) % len(left)]
        if joined == best or joined in axes:
            continue
        keeps = bool(attribute(node, 'keepdims', 1))
        result = left if keeps else [axis for axis in left if axis != best]
        made, parts = [], []
        for index, part in enumerate(whole.input):
            if squeezed is not None:
                smaller = f'{node.output[0]}_part{index}'
                made.append(helper.make_node('Squeeze', [part, squeezed.input[1]], [smaller]))
                part = smaller
            later = onnx.NodeProto()
            later.CopyFrom(node)
            later.input[0], later.output[0] = part, f'{node.output[0]}_best{index}'
            later.name = later.output[0]  # torch numbers the names of its nodes as well: '/ArgMax_1' is another one
            made.append(later)
            parts.append(later.output[0])
        made.append(helper.make_node('Concat', parts, list(node.output), axis=result.index(joined)))
        yield node, made


RULES: list[Callable[[Graph], Iterator[Replacement]]] = [first_of_one, best_of_chosen, best_of_parts]


def apply_rules(model: onnx.ModelProto, inferred: onnx.ModelProto | None = None) -> onnx.ModelProto:
    """The graph with every rule applied wherever it fits.

    Args:
        model: with its constants folded; is not changed.
        inferred: the same with inferred shapes, where somebody has it already.

    Returns:
        ``model`` itself when no rule fits.
    """
    graph = (inferred or onnx.shape_inference.infer_shapes(model, data_prop=True)).graph
    # once, as this takes longer than the rules; what a rule makes keeps its name and shape
    shapes = {
        value.name: value.type.tensor_type.shape.dim
        for value in [*graph.value_info, *graph.input, *graph.output]
        if value.type.tensor_type.HasField('shape')
    }
    for rule in RULES:
        graph = Graph(model, shapes)
        replaced = {node.output[0]: nodes for node, nodes in rule(graph)}
        if not replaced:
            continue
        result = onnx.ModelProto()
        result.CopyFrom(model)
        nodes = [new for node in model.graph.node for new in replaced.get(next(iter(node.output), ''), [node])]
        del result.graph.node[:]
        result.graph.node.extend(nodes)
        result.graph.initializer.extend(graph.new_weights)
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
    kept = [*reversed(kept)]
    del graph.node[:]
    graph.node.extend(kept)
    weights = [tensor for tensor in graph.initializer if tensor.name in wanted]
    del graph.initializer[:]
    graph.initializer.extend(weights)
    return model
