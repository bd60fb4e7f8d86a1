"""Going through graphs, the bodies of loops and branches included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import onnx


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The bodies that a node has."""
    bodies = []
    for item in node.attribute:
        if item.type == onnx.AttributeProto.GRAPH:
            bodies.append(item.g)
        elif item.type == onnx.AttributeProto.GRAPHS:
            bodies.extend(item.graphs)
    return bodies


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Those of a graph and of all bodies in it."""
    for node in graph.node:
        yield node
        for body in subgraphs(node):
            yield from all_nodes(body)


def reads(node: onnx.NodeProto) -> set[str]:
    """Names that a node reads, those that its bodies take from outside included."""
    names = set(node.input)
    for body in subgraphs(node):
        names.update(*map(reads, body.node))
    return names


def set_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Give a graph other nodes, in place; they may be its own."""
    nodes = [copy_node(node) for node in nodes]
    del graph.node[:]
    graph.node.extend(nodes)


def copy_node(node: onnx.NodeProto) -> onnx.NodeProto:
    """A copy, bodies included."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """The value of a node's attribute; strings as such."""
    for item in node.attribute:
        if item.name == name:
            value = onnx.helper.get_attribute_value(item)
            return value.decode() if isinstance(value, bytes) else value
    return default


def all_weights(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """The initializers of a graph and of all bodies in it."""
    yield from graph.initializer
    for node in graph.node:
        for body in subgraphs(node):
            yield from all_weights(body)
