"""Slices that keep everything, removed.

mmseg cuts the padding off the logits before it resizes them. Where there is none that is three copies of the largest
tensor of the graph, which neither ONNX Runtime nor the other optimizers see through when sizes are dynamic. In plain
onnx, because the exporter works without onnxscript.
"""

from __future__ import annotations

import onnx
from onnx import numpy_helper

from .graphs import all_nodes

INT64_MAX = 2**63 - 1


def drop_whole_slices(model: onnx.ModelProto, inferred: onnx.ModelProto | None = None) -> onnx.ModelProto:
    """The graph without slices that keep everything, be the size a number or read from the tensor in the graph.

    Args:
        model: with its constants folded; is not changed.
        inferred: the same with inferred shapes, where somebody has it already.

    Returns:
        ``model`` itself when there is no such slice.
    """
    facts = _Facts(inferred or onnx.shape_inference.infer_shapes(model, data_prop=True))
    for node in model.graph.node:
        if node.op_type == 'Slice' and facts.keeps_everything(node):
            facts.same_as[node.output[0]] = facts.same(node.input[0])
    outputs = {value.name for value in model.graph.output}
    dropped = facts.same_as.keys() - outputs
    if not dropped:
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    kept = [node for node in result.graph.node if node.output[0] not in dropped]
    del result.graph.node[:]
    result.graph.node.extend(kept)
    _read_instead(result.graph, {name: facts.same(name) for name in dropped})
    return result


def _read_instead(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    for node in all_nodes(graph):
        node.input[:] = [names.get(name, name) for name in node.input]


class _Facts:
    """What is known of a graph's values.

    Args:
        model: with inferred shapes.

    Attributes:
        same_as: values that are copies, and of what.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        self._producers = {name: node for node in graph.node for name in node.output}
        self._numbers = {item.name: numpy_helper.to_array(item) for item in graph.initializer if _is_number(item)}
        for node in graph.node:
            if node.op_type == 'Constant' and node.attribute[0].name == 'value' and _is_number(node.attribute[0].t):
                self._numbers[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        self._shapes = {
            value.name: [
                dim.dim_value if dim.HasField('dim_value') else None for dim in value.type.tensor_type.shape.dim
            ]
            for value in [*graph.value_info, *graph.input, *graph.output]
            if value.type.tensor_type.HasField('shape')
        }
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
            shape = self._shapes.get(data)
            size = shape[axis] if shape is not None and axis < len(shape) else None
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
        value = self._numbers.get(name)
        return None if value is None else int(value.item())

    def _source(self, name: str, *passed: str) -> onnx.NodeProto | None:
        """The node that computes a value, beyond nodes that only pass it on."""
        node = self._producers.get(name)
        while node is not None and node.op_type in ('Identity', *passed):
            node = self._producers.get(node.input[0])
        return node


def _is_number(tensor: onnx.TensorProto) -> bool:
    integer = tensor.data_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
    return integer and all(extent == 1 for extent in tensor.dims)
