"""The network in a finished graph: cut out, converted by whoever knows how, and put back.

What comes before it (normalization) and after it (decoding, thresholds, NMS, pasting) computes with pixels and scores,
to which eight bits, or the ten digits of a float16, are not enough. So the libraries that change a model's precision
only ever see the network.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import onnx
from onnx import AttributeProto, TensorProto, helper

from ..errors import UnsupportedError
from ..export.facts import resamples
from ..export.graphs import all_nodes, reads, set_nodes, subgraphs

BARRIERS = frozenset(
    {'NonMaxSuppression', 'TopK', 'RoiAlign', 'NonZero', 'ArgMax', 'Shape', 'Size', 'Loop', 'If', 'Scan'}
)
"""What comes out of these are boxes, places or sizes, or features at boxes: the network does not go on through them."""

_SMALLEST = 8
"""A matrix with fewer rows or columns is no layer: the average over the bins of a distribution has one column."""


Path = tuple[tuple[int, str], ...]


@dataclass
class Network:
    """The layers of one graph and what lies between them.

    Attributes:
        graph: that they are in: the model's or the body of a loop in it. Belongs to the model.
        path: the way there: (place of a node, name of its attribute) from the model's graph on.
        places: of its nodes among the graph's.
        inputs: values that come from outside, weights aside.
        outputs: values that are used outside.
        weights: that it uses, by name, of whatever graph around.
    """

    graph: onnx.GraphProto
    path: Path
    places: list[int]
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    weights: dict[str, onnx.TensorProto] = field(default_factory=dict)

    @property
    def nodes(self) -> list[onnx.NodeProto]:
        """In the graph's order."""
        return [self.graph.node[place] for place in self.places]

    @property
    def layers(self) -> list[onnx.NodeProto]:
        """Those with weights."""
        return [node for node in self.nodes if is_layer(node, self.weights)]


def find_networks(model: onnx.ModelProto) -> list[Network]:
    """One for each graph that has layers: the model's own, and bodies of loops.

    Args:
        model: its ``Constant`` nodes become weights, in place.

    Raises:
        UnsupportedError: there is no layer with weights.
    """
    found = list(_find(model.graph, (), {}))
    if not found:
        raise UnsupportedError('the graph has no layers with weights: there is nothing whose precision could be lower')
    return found


def _find(graph: onnx.GraphProto, path: Path, around: Mapping[str, onnx.TensorProto]) -> Iterator[Network]:
    _constants_to_weights(graph)
    weights = {**around, **{tensor.name: tensor for tensor in graph.initializer}}
    places = _places(graph, weights)
    if places:
        network = Network(graph, path, places)
        _name_nodes(network)
        inside = {name for node in network.nodes for name in node.output}
        used = dict.fromkeys(name for node in network.nodes for name in node.input if name and name not in inside)
        network.weights = {name: weights[name] for name in used if name in weights}
        network.inputs = [name for name in used if name not in weights]
        mine = set(places)
        outside = {name for index, node in enumerate(graph.node) if index not in mine for name in reads(node)}
        outside |= {value.name for value in graph.output}
        network.outputs = [name for node in network.nodes for name in node.output if name in outside]
        yield network
    for index, node in enumerate(graph.node):
        for attribute in node.attribute:
            # in branches there is what comes after the network, in one way or the other
            if attribute.type == AttributeProto.GRAPH and node.op_type != 'If':
                yield from _find(attribute.g, (*path, (index, attribute.name)), weights)


def _name_nodes(network: Network) -> None:
    """Layers are chosen by their names: each gets one of its own."""
    taken: set[str] = set()
    for place, node in zip(network.places, network.nodes, strict=True):
        if not node.name or node.name in taken:
            node.name = f'{node.name or node.op_type}_{place}'
        taken.add(node.name)


def _constants_to_weights(graph: onnx.GraphProto) -> None:
    kept = []
    for node in graph.node:
        value = next((item for item in node.attribute if item.name == 'value'), None)
        if node.op_type == 'Constant' and value is not None and value.type == AttributeProto.TENSOR:
            tensor = graph.initializer.add()
            tensor.CopyFrom(value.t)
            tensor.name = node.output[0]
        else:
            kept.append(node)
    if len(kept) < len(graph.node):
        set_nodes(graph, kept)


def is_layer(node: onnx.NodeProto, weights: Mapping[str, onnx.TensorProto]) -> bool:
    """A convolution or a matrix product with weights."""
    tensors = [weights[name] for name in node.input[:2] if name in weights]
    tensors = [tensor for tensor in tensors if tensor.data_type == TensorProto.FLOAT]
    if node.op_type in ('Conv', 'ConvTranspose'):
        return bool(tensors)
    if node.op_type in ('MatMul', 'Gemm'):
        return any(len(item.dims) > 1 and min(item.dims[-2:]) >= _SMALLEST and not resamples(item) for item in tensors)
    return False


def last_layers(network: Network) -> set[str]:
    """Outputs of the layers behind which there is no other."""
    nodes = network.nodes
    users: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes:
        for name in node.input:
            users.setdefault(name, []).append(node)
    layers = {node.output[0] for node in network.layers}
    last = set()
    for node in network.layers:
        seen: set[str] = set()
        stack = [node.output[0]]
        while stack:
            for user in users.get(stack.pop(), ()):
                fresh = set(user.output) - seen  # a network that branches has more ways through it than can be gone
                seen |= fresh
                stack += fresh if user.op_type not in BARRIERS else ()
        if not seen & layers:
            last.add(node.output[0])
    return last


def _places(graph: onnx.GraphProto, weights: Mapping[str, onnx.TensorProto]) -> list[int]:
    """The layers and all that lies on a way from one to another; and what asks for the sizes of these."""
    nodes = list(graph.node)
    layers = {index for index, node in enumerate(nodes) if is_layer(node, weights)}
    makes = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    before = [{makes[name] for name in node.input if name in makes} for node in nodes]
    after: list[set[int]] = [set() for _ in nodes]
    for index, sources in enumerate(before):
        for source in sources:
            after[source].add(index)
    barrier = {index for index, node in enumerate(nodes) if node.op_type in BARRIERS}
    network = layers | (_reached(layers, after, barrier) & _reached(layers, before, barrier))
    network |= {index for index in barrier if nodes[index].op_type == 'Shape' and before[index] & network}
    return sorted(network)


def _reached(start: Iterable[int], edges: list[set[int]], barrier: set[int]) -> set[int]:
    seen: set[int] = set()
    stack = list(start)
    while stack:
        for index in edges[stack.pop()] - seen - barrier:
            seen.add(index)
            stack.append(index)
    return seen


def graph_at(model: onnx.ModelProto, path: Path) -> onnx.GraphProto:
    """The graph at the end of a path."""
    graph = model.graph
    for index, name in path:
        graph = next(item.g for item in graph.node[index].attribute if item.name == name)
    return graph


def element_types(model: onnx.ModelProto, network: Network) -> dict[str, int]:
    """Element types of the values that a network can see, as ONNX's shape inference finds them."""
    inferred = onnx.shape_inference.infer_shapes(model)
    types: dict[str, int] = {}
    for length in range(len(network.path) + 1):
        graph = graph_at(inferred, network.path[:length])
        for value in [*graph.value_info, *graph.input, *graph.output]:
            types[value.name] = value.type.tensor_type.elem_type
    return types


def cut(model: onnx.ModelProto, network: Network) -> onnx.ModelProto:
    """The network as a model of its own.

    Args:
        model: that it was found in; is not changed.

    Raises:
        UnsupportedError: the type of what goes in or out is not known.
    """
    types = element_types(model, network)
    if unknown := [name for name in [*network.inputs, *network.outputs] if not types.get(name)]:
        raise UnsupportedError(f'the network cannot be cut out: the type of {unknown[0]} is not known')
    inputs, outputs = (
        [helper.make_tensor_value_info(name, types[name], None) for name in names]
        for names in (network.inputs, network.outputs)
    )
    graph = helper.make_graph(network.nodes, 'network', inputs, outputs, list(network.weights.values()))
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def put_back(model: onnx.ModelProto, networks: list[Network], converted: list[onnx.ModelProto]) -> None:
    """Put converted networks in the places that they were cut out of, in place.

    Args:
        model: that they were found in.
        networks: as :func:`find_networks` found them.
        converted: one for each, with its inputs and outputs.
    """
    pairs = list(zip(networks, converted, strict=True))
    for network, new in sorted(pairs, key=lambda pair: -len(pair[0].path)):  # bodies first: their nodes move then
        graph, mine = network.graph, set(network.places)
        set_nodes(graph, [node for index, node in enumerate(graph.node) if index not in mine])
        _drop_unused_weights(model)  # the network's old ones, whose names the new ones may have
        fresh = _without_clashes(new.graph, _names(model), {*network.inputs, *network.outputs})
        graph.initializer.extend(fresh.initializer)
        set_nodes(graph, _sorted([*graph.node, *fresh.node]))


def _names(model: onnx.ModelProto) -> set[str]:
    """Of all values, weights aside that nothing uses."""
    graphs = [model.graph, *(body for node in all_nodes(model.graph) for body in subgraphs(node))]
    names = {name for node in all_nodes(model.graph) for name in [*node.input, *node.output]}
    return names | {value.name for graph in graphs for value in [*graph.input, *graph.output]}


def _without_clashes(graph: onnx.GraphProto, taken: set[str], kept: set[str]) -> onnx.GraphProto:
    """A network whose own values and weights have names that nothing else has."""
    result = onnx.GraphProto()
    result.CopyFrom(graph)
    own = {name for node in graph.node for name in node.output} | {tensor.name for tensor in graph.initializer}
    new: dict[str, str] = {}
    for name in sorted((own & taken) - kept):
        count = 1
        while f'{name}_{count}' in taken | own:
            count += 1
        new[name] = f'{name}_{count}'
    for node in result.node:
        for names in (node.input, node.output):
            names[:] = [new.get(name, name) for name in names]
    for tensor in result.initializer:
        tensor.name = new.get(tensor.name, tensor.name)
    return result


def _sorted(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """In an order in which each comes after what it uses, as near to the given one as possible."""
    makes = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    waits = [{makes[name] for name in reads(node) if name in makes} - {index} for index, node in enumerate(nodes)]
    after: list[list[int]] = [[] for _ in nodes]
    for index, sources in enumerate(waits):
        for source in sources:
            after[source].append(index)
    missing = [len(sources) for sources in waits]
    ready = [index for index, count in enumerate(missing) if not count]
    order = []
    heapq.heapify(ready)
    while ready:
        index = heapq.heappop(ready)
        order.append(nodes[index])
        for other in after[index]:
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(ready, other)
    return order


def _drop_unused_weights(model: onnx.ModelProto) -> None:
    names = _names(model)
    for graph in [model.graph, *(body for node in all_nodes(model.graph) for body in subgraphs(node))]:
        kept = [tensor for tensor in graph.initializer if tensor.name in names]
        if len(kept) < len(graph.initializer):
            del graph.initializer[:]
            graph.initializer.extend(kept)
