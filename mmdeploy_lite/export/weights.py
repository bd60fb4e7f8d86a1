"""Weights put aside while a graph is worked on.

Every tool that a graph passes through writes it to bytes and reads it again. Almost all of these bytes are weights that
no tool looks into.
"""

from __future__ import annotations

from collections import defaultdict

import onnx

from .graphs import all_nodes

_WEIGHTED = {'Conv': 1, 'ConvTranspose': 1, 'Gemm': 1, 'MatMul': 1}
"""Operators and which of their inputs holds the weights."""

_FOLDED = ('BatchNormalization', 'Mul', 'Add', 'Div', 'Sub')
"""Operators that are folded into the weights before them, when what they do is constant."""

_SMALLEST = 4096  # bytes; smaller ones may be sizes


def set_aside(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Make inputs of the weights that nothing can be folded into, in place.

    Args:
        model: a graph.

    Returns:
        The weights, for :func:`put_back`.
    """
    graph = model.graph
    readers: dict[str, list[tuple[onnx.NodeProto, int]]] = defaultdict(list)
    for node in all_nodes(graph):
        for place, name in enumerate(node.input):
            readers[name].append((node, place))
    constants = {tensor.name for tensor in graph.initializer}
    constants.update(node.output[0] for node in graph.node if node.op_type == 'Constant')

    def untouched(node: onnx.NodeProto, place: int) -> bool:
        if _WEIGHTED.get(node.op_type) != place:
            return False
        followers = [(other, at) for other, at in readers[node.output[0]] if other.op_type in _FOLDED]
        return not any(
            name in constants for other, at in followers for index, name in enumerate(other.input) if index != at
        )

    inputs = {value.name for value in graph.input}
    aside = [
        tensor
        for tensor in graph.initializer
        if len(tensor.raw_data) >= _SMALLEST
        and tensor.name not in inputs
        and readers[tensor.name]
        and all(untouched(*reader) for reader in readers[tensor.name])
    ]
    names = {tensor.name for tensor in aside}
    copies = []
    for tensor in aside:
        copies.append(onnx.TensorProto())
        copies[-1].CopyFrom(tensor)
        graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    kept = [tensor for tensor in graph.initializer if tensor.name not in names]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return copies


def put_back(model: onnx.ModelProto, weights: list[onnx.TensorProto]) -> None:
    """Undo :func:`set_aside`, in place, for the weights that the graph still reads."""
    graph = model.graph
    names = {tensor.name for tensor in weights}
    inputs = [value for value in graph.input if value.name not in names]
    del graph.input[:]
    graph.input.extend(inputs)
    read = {name for node in all_nodes(graph) for name in node.input}
    graph.initializer.extend(tensor for tensor in weights if tensor.name in read)
