"""Tools to break the graph of a finished file in one place."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ...export.graphs import subgraphs
from ...runtime.metadata import METADATA_KEY


class NotApplicableError(Exception):
    """The graph has nothing of the kind that a fault breaks."""


class Graph:
    """One graph and what is where in it. Names are unique over all of its subgraphs.

    Args:
        model: is changed.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.top = model.graph
        self._count = 0

    def graphs(self) -> list[onnx.GraphProto]:
        """The graph and all subgraphs."""
        found, queue = [], [self.top]
        while queue:
            found.append(queue.pop())
            queue += [inner for node in found[-1].node for inner in subgraphs(node)]
        return found

    def nodes(self, *kinds: str) -> list[onnx.NodeProto]:
        """Nodes of these operators, of all where none is named."""
        return [node for graph in self.graphs() for node in graph.node if not kinds or node.op_type in kinds]

    def value(self, name: str) -> np.ndarray | None:
        """What a constant holds; None for what is computed."""
        for graph in self.graphs():
            for tensor in graph.initializer:
                if tensor.name == name:
                    return numpy_helper.to_array(tensor)
            for node in graph.node:
                if node.op_type == 'Constant' and node.output[0] == name:
                    return numpy_helper.to_array(node.attribute[0].t)
        return None

    def constant(self, value: Any) -> str:
        """A new constant; its name. Visible in subgraphs too."""
        self._count += 1
        name = f'fault_{self._count}'
        self.top.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def producer(self, name: str) -> tuple[onnx.GraphProto, int] | None:
        """The graph and the place in it of the node that computes a value."""
        for graph in self.graphs():
            for index, node in enumerate(graph.node):
                if name in node.output:
                    return graph, index
        return None

    def ancestors(self, name: str, limit: int = 60) -> Iterator[onnx.NodeProto]:
        """Nodes that a value is computed from, the nearest first."""
        queue, seen = [name], set()
        while queue and len(seen) < limit:
            current = queue.pop(0)
            if current in seen or not current:
                continue
            seen.add(current)
            found = self.producer(current)
            if found is not None:
                node = found[0].node[found[1]]
                yield node
                queue += list(node.input)

    def after(self, name: str, kind: str, *inputs: str, **attributes: Any) -> None:
        """Put a node behind a value: whoever read the value reads the node's output, as does the graph's output.

        Args:
            name: of the value: an input of the graph, or what a node computes.
            kind: of the node, whose first input is the value.
            *inputs: its other inputs.
            **attributes: its attributes.
        """
        self._count += 1
        found = self.producer(name)
        if found is None:  # an input of the graph keeps its name
            result = f'{name}_after_{self._count}'
            self.reread(name, result)
            self.top.node.insert(0, helper.make_node(kind, [name, *inputs], [result], **attributes))
            return
        graph, index = found
        source = f'{name}_before_{self._count}'  # so that an output of the graph keeps its own
        graph.node[index].output[:] = [source if item == name else item for item in graph.node[index].output]
        graph.node.insert(index + 1, helper.make_node(kind, [source, *inputs], [name], **attributes))

    def reread(self, name: str, result: str) -> None:
        """Let whoever reads a value read another."""
        for node in self.nodes():
            node.input[:] = [result if item == name else item for item in node.input]

    @property
    def metadata(self) -> dict[str, Any]:
        """The file's description of itself."""
        return json.loads(next(entry.value for entry in self.model.metadata_props if entry.key == METADATA_KEY))

    def outputs(self) -> list[str]:
        """Names of the graph's outputs."""
        return [value.name for value in self.top.output]

    def inputs(self) -> list[str]:
        """Names of the graph's inputs."""
        return [value.name for value in self.top.input]


def require(found: Sequence[Any]) -> Sequence[Any]:
    """What was looked for.

    Raises:
        NotApplicableError: there is nothing.
    """
    if not found:
        raise NotApplicableError
    return found


def set_attribute(node: onnx.NodeProto, name: str, value: Any) -> None:
    """Give a node's attribute another value."""
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


Edit = Callable[[Graph], None]


def apply(edit: Edit, model: onnx.ModelProto) -> onnx.ModelProto:
    """A broken copy of a model.

    Raises:
        NotApplicableError: it has nothing of the kind that the fault breaks.
        AssertionError: the edit changed nothing, so whatever is found says nothing about the check.
    """
    broken = onnx.ModelProto()
    broken.CopyFrom(model)
    edit(Graph(broken))
    assert broken.SerializeToString(deterministic=True) != model.SerializeToString(deterministic=True), (
        f'{edit.__name__} changed nothing'
    )
    return broken


GRAPH_FAULTS: dict[str, Edit] = {}
"""All faults in the graph of a finished file, by name."""


def fault(name: str) -> Callable[[Edit], Edit]:
    """Register one."""

    def register(edit: Edit) -> Edit:
        GRAPH_FAULTS[name] = edit
        return edit

    return register


def has_value(graph: Graph, name: str) -> None:
    """The graph has this input or output.

    Raises:
        NotApplicableError: it has not.
    """
    if name not in graph.outputs() + graph.inputs():
        raise NotApplicableError
