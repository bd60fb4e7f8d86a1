"""The part of a file that is the network: what is left is post-processing."""

from __future__ import annotations

import onnx

from ..export.facts import resamples
from ..export.graphs import reads, subgraphs

_WEIGHTED = ('Conv', 'ConvTranspose', 'Gemm', 'MatMul')
_SMALLEST = 4096  # bytes; a smaller matrix is of a computation with boxes


def network_part(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph up to its last operators with weights, answering what goes on to post-processing.

    Of two-stage detectors the NMS of proposals and RoIAlign belong to it, since the RoI heads come after them.

    Args:
        model: of an exported file; is not changed.
    """
    graph = model.graph
    large = _large_of(graph)
    wanted: set[str] = set()
    kept = []
    for node in reversed(graph.node):  # sorted: what reads a value comes after what makes it
        if _has_weights(node, large) or wanted.intersection(node.output):
            kept.append(node)
            wanted.update(reads(node))
    kept.reverse()
    made = {name for node in kept for name in node.output if name}
    inside = {id(node) for node in kept}
    leaving = {name for node in graph.node if id(node) not in inside for name in reads(node)}
    leaving.update(value.name for value in graph.output)
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:], result.graph.output[:], result.graph.value_info[:]
    result.graph.node.extend(kept)
    result.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in sorted(made & leaving))
    unused = {tensor.name for tensor in graph.initializer} - {name for node in kept for name in reads(node)}
    weights = [tensor for tensor in result.graph.initializer if tensor.name not in unused]
    del result.graph.initializer[:]
    result.graph.initializer.extend(weights)
    return result


def _has_weights(node: onnx.NodeProto, large: set[str]) -> bool:
    if node.op_type in _WEIGHTED and large.intersection(node.input):
        return True
    return any(_has_weights(inner, large | _large_of(body)) for body in subgraphs(node) for inner in body.node)


def _large_of(graph: onnx.GraphProto) -> set[str]:
    large = (tensor for tensor in graph.initializer if len(tensor.raw_data) >= _SMALLEST)
    found = {tensor.name for tensor in large if not resamples(tensor)}
    constant = {tensor.name for tensor in graph.initializer}
    for node in graph.node:  # sums of weights are weights
        if node.input and constant.issuperset(reads(node)):
            constant.update(node.output)
            found.update(node.output if found.intersection(node.input) else ())
    return found
