"""Slices that keep everything, removed.

mmseg cuts the padding off the logits before it resizes them. Where there is none that is three copies of the largest
tensor of the graph, which neither ONNX Runtime nor the other optimizers see through when sizes are dynamic. In plain
onnx, because the exporter works without onnxscript.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from .facts import Facts, known_shapes
from .graphs import all_nodes, set_nodes

INT64_MAX = 2**63 - 1


def drop_whole_slices(model: onnx.ModelProto, shapes: Mapping[str, Sequence[Any]] | None = None) -> onnx.ModelProto:
    """The graph without slices that keep everything, be the size a number or read from the tensor in the graph.

    Args:
        model: with its constants folded; is not changed.
        shapes: see :func:`known_shapes`, where somebody has them already.

    Returns:
        ``model`` itself when there is no such slice.
    """
    facts = _Slices(model, known_shapes(model) if shapes is None else shapes)
    for node in facts.nodes:
        if node.op_type == 'Slice' and facts.keeps_everything(node):
            facts.same_as[node.output[0]] = facts.same(node.input[0])
    outputs = {value.name for value in model.graph.output}
    dropped = facts.same_as.keys() - outputs
    if not dropped:
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    set_nodes(result.graph, [node for node in result.graph.node if node.output[0] not in dropped])
    _read_instead(result.graph, {name: facts.same(name) for name in dropped})
    return result


def _read_instead(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    for node in all_nodes(graph):
        node.input[:] = [names.get(name, name) for name in node.input]


class _Slices(Facts):
    """What is known of a graph, and which values are copies.

    Attributes:
        same_as: values that are copies, and of what.
    """

    def __init__(self, model: onnx.ModelProto, shapes: Mapping[str, Sequence[Any]]) -> None:
        super().__init__(model, shapes)
        self.same_as: dict[str, str] = {}

    def same(self, name: str) -> str:
        """What a value is a copy of."""
        while name in self.same_as:
            name = self.same_as[name]
        return name

    def keeps_everything(self, node: onnx.NodeProto) -> bool:
        """A Slice along one axis, from 0 to the size of what it slices, for every input of the graph."""
        data, starts, ends, axes, steps = [*node.input, '', ''][:5]
        axis, step = self._number(axes), self._number(steps) if steps else 1
        if self._number(starts) != 0 or step != 1 or axis is None or axis < 0:
            return False
        number = self._number(ends)
        if number is not None:
            size = self.size(data, axis)
            return number == INT64_MAX or (size is not None and number >= size)
        size_of = self._source(ends, 'Unsqueeze', 'Squeeze')
        if size_of is None or size_of.op_type != 'Gather' or self._number(size_of.input[1]) != axis:
            return False
        shape_of = self._source(size_of.input[0])
        if shape_of is None or shape_of.op_type != 'Shape':
            return False
        # opset 15 and later: a part of the shape
        if any(attribute.name == 'end' or attribute.i for attribute in shape_of.attribute):
            return False
        return self.same(shape_of.input[0]) == self.same(data)

    def _number(self, name: str) -> int | None:
        """The single integer that a constant holds."""
        value = self.constant(name)
        return int(value.item()) if value is not None and value.size == 1 and value.dtype.kind == 'i' else None

    def _source(self, name: str, *passed: str) -> onnx.NodeProto | None:
        """The node that computes a value, beyond nodes that only pass it on."""
        node = self.producers.get(name)
        while node is not None and node.op_type in ('Identity', *passed):
            node = self.producers.get(node.input[0])
        return node
