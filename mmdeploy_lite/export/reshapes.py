"""What a size of zero means in a ``Reshape``."""

from __future__ import annotations

import onnx
from onnx import numpy_helper


def take_zeros_literally(model: onnx.ModelProto) -> None:
    """Let a computed size of 0 be 0, as in PyTorch, in place.

    By default ONNX copies the input's size there, and PyTorch's exporter leaves it at that: ``x.reshape(n, h, w)`` of
    a (1, n, h, w) tensor is then of size 1 along the first axis when n is 0. With ``allowzero`` a size cannot be -1,
    so nodes whose sizes have a constant below one stay as they are.
    """
    for graph in _graphs(model.graph):
        constants = {value.name: numpy_helper.to_array(value) for value in graph.initializer}
        producers = {output: node for node in graph.node for output in node.output}
        for node in graph.node:
            if node.op_type == 'Constant' and node.attribute[0].name == 'value':
                constants[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        for node in graph.node:
            sizes = producers.get(node.input[1]) if node.op_type == 'Reshape' else None
            if sizes is None or sizes.op_type != 'Concat':
                continue
            if all(name not in constants or (constants[name] > 0).all() for name in sizes.input):
                del node.attribute[:]
                node.attribute.append(onnx.helper.make_attribute('allowzero', 1))


def _graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    """The graph and its subgraphs."""
    found = [graph]
    for node in graph.node:
        for attribute in node.attribute:
            for subgraph in [attribute.g] if attribute.HasField('g') else attribute.graphs:
                found += _graphs(subgraph)
    return found
