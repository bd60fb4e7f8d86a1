"""Two ways to one answer, of which the file takes the cheaper where it is enough: an ONNX ``If``.

A tracer records both ways. The graph then chooses between their results, and whatever only one of them needs is moved
into its branch, where it runs when that branch is taken. Both must answer the same wherever the first one is taken;
the check runs the file both ways (:func:`taking_the_second_way`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx
import torch
from onnx import TensorProto, helper
from torch import Tensor

from .graphs import all_nodes, attribute, reads, set_nodes, subgraphs
from .shapes import tracing_paused
from .tracing import is_symbolic

DOMAIN = 'mmdeploy_lite.choices'
"""Of the mark in a traced graph; no finished graph has it."""

PREFIX = 'choice_'
"""Names of the ``If`` nodes that come from here begin with it."""


class _Choose(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, enough: Tensor, *ways: Tensor) -> tuple[Tensor, ...]:
        with tracing_paused():
            half = len(ways) // 2
            return tuple(value.clone() for value in (ways[:half] if bool(enough) else ways[half:]))

    @staticmethod
    def symbolic(g: Any, enough: Any, *ways: Any) -> Any:
        half = len(ways) // 2
        kinds = [way.type() for way in ways[:half]]
        elements = [_element_type(kind.dtype()) for kind in kinds]
        chosen = g.op(f'{DOMAIN}::Choose', enough, *ways, elements_i=elements, outputs=half)
        values = []
        for value, kind in zip([chosen] if half == 1 else chosen, kinds, strict=True):
            sizes = kind.sizes()
            rows = sizes is not None and len(sizes) == 2  # of coordinates, say, which are as many for every image
            unknown = kind.with_sizes([None, sizes[1]] if rows else sizes and [None] * len(sizes))
            value.setType(unknown)
            # only a node of its own keeps it: the exporter fills in the sizes of the image it traces
            value = g.op('Identity', value)
            value.setType(unknown)
            values.append(value)
        return values[0] if half == 1 else tuple(values)


def _element_type(dtype: torch.dtype) -> int:
    return helper.np_dtype_to_tensor_dtype(torch.zeros((), dtype=dtype).numpy().dtype)


def choose(enough: Tensor, first: Sequence[Tensor], second: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The results of the first way where it is enough, else those of the second.

    Under ``torch.export`` the second way, which is always right: a branch there is a function of its own that must not
    share what both ways need.

    Args:
        enough: 0-dim bool.
        first: of the cheaper way.
        second: of the other, of the same dtypes; of two axes, the last has the same size for every image.
    """
    if is_symbolic():
        return tuple(second)
    return _Choose.apply(enough, *first, *second)


def close_choices(model: onnx.ModelProto) -> None:
    """Put an ``If`` in the place of each mark, in place; its branches only pass on what both ways computed."""
    graph = model.graph
    marks = [node for node in graph.node if (node.domain, node.op_type) == (DOMAIN, 'Choose')]
    for index, mark in enumerate(marks):
        elements = attribute(mark, 'elements')
        half = len(elements)
        ways = {'then': mark.input[1 : 1 + half], 'else': mark.input[1 + half :]}
        branches = {
            f'{way}_branch': _passing_on(f'{PREFIX}{index}_{way}', sources, mark.output, elements)
            for way, sources in ways.items()
        }
        node = helper.make_node('If', [mark.input[0]], list(mark.output), name=f'{PREFIX}{index}', **branches)
        mark.CopyFrom(node)
    kept = [entry for entry in model.opset_import if entry.domain != DOMAIN]
    del model.opset_import[:]
    model.opset_import.extend(kept)


def _passing_on(name: str, sources: Sequence[str], outputs: Sequence[str], elements: Sequence[int]) -> onnx.GraphProto:
    results = []
    for output, element in zip(outputs, elements, strict=True):
        result = onnx.ValueInfoProto(name=f'{output}_of_{name}')
        result.type.tensor_type.elem_type = element
        results.append(result)
    nodes = [
        helper.make_node('Identity', [source], [result.name]) for source, result in zip(sources, results, strict=True)
    ]
    return helper.make_graph(nodes, name, [], results)


def sink_into_branches(model: onnx.ModelProto) -> None:
    """Move what only one branch of a choice needs into it, in place."""
    # in their order: one that only a later one's branch needs goes there with all it holds
    for name in [node.name for node in model.graph.node if node.name.startswith(PREFIX)]:
        for branch in range(2):
            _sink(model.graph, name, branch)
        _copy_shared(model.graph, name)
        _own_numbers(model.graph, name)


def _sink(graph: onnx.GraphProto, name: str, branch: int) -> None:
    nodes = list(graph.node)
    place = next(index for index, node in enumerate(nodes) if node.name == name)
    bodies = subgraphs(nodes[place])
    elsewhere = {value.name for value in graph.output} | set(nodes[place].input)
    elsewhere |= {name for node in bodies[1 - branch].node for name in reads(node)}
    readers: dict[str, list[int]] = {}
    for index, node in enumerate(nodes):
        for read in reads(node):
            readers.setdefault(read, []).append(index)
    inside = {place}
    for index in reversed(range(place)):
        outputs = nodes[index].output
        made = [output for output in outputs if output in readers]
        if made and not elsewhere.intersection(outputs) and all(inside.issuperset(readers[output]) for output in made):
            inside.add(index)
    inside.remove(place)
    set_nodes(bodies[branch], [*(nodes[index] for index in sorted(inside)), *bodies[branch].node])
    set_nodes(graph, [node for index, node in enumerate(nodes) if index not in inside])


_SHARED = ('MatMul', 'Slice', 'Gather')
"""What both branches read, and nobody else, is computed in each of them, so that the one that runs can go on with it
piece by piece. Of these operators alone, as they come last before the choice: else both would hold the network.
"""


def _copy_shared(graph: onnx.GraphProto, name: str) -> None:
    nodes = list(graph.node)
    place = next(index for index, node in enumerate(nodes) if node.name == name)
    bodies = subgraphs(nodes[place])
    wanted = [{read for node in body.node for read in reads(node)} for body in bodies]
    elsewhere = {value.name for value in graph.output} | set(nodes[place].input)
    elsewhere |= {read for node in nodes[place + 1 :] for read in reads(node)}
    copied: set[int] = set()
    for index in reversed(range(place)):
        node = nodes[index]
        readers = [names for names in wanted if names.intersection(node.output)]
        if node.op_type in _SHARED and readers and not elsewhere.intersection(node.output):
            copied.add(index)
            for names in readers:
                names |= reads(node)
        else:
            elsewhere |= reads(node)
    for body, names in zip(bodies, wanted, strict=True):
        inside = [nodes[index] for index in sorted(copied) if names.intersection(nodes[index].output)]
        set_nodes(body, [*inside, *body.node])
    set_nodes(graph, [node for index, node in enumerate(nodes) if index not in copied])


def _own_numbers(graph: onnx.GraphProto, name: str) -> None:
    """Give the branches copies of the few whole numbers that they read, sizes and axes, in place.

    ONNX's checker sees no constant from outside, takes a size made with one for no number at all and rejects the graph.
    """
    node = next(node for node in graph.node if node.name == name)
    defaults = {value.name for value in graph.input}
    numbers = {
        tensor.name: tensor
        for tensor in graph.initializer
        if tensor.data_type in _WHOLE and math.prod(tensor.dims) <= _FEW and tensor.name not in defaults
    }
    for body in subgraphs(node):
        wanted = sorted({read for inner in body.node for read in inner.input}.intersection(numbers))
        renamed = {read: f'{read}_of_{body.name}' for read in wanted}
        for inner in body.node:
            for index, read in enumerate(inner.input):
                inner.input[index] = renamed.get(read, read)
        for read in wanted:
            own = body.initializer.add()
            own.CopyFrom(numbers[read])
            own.name = renamed[read]
    read_still = {value.name for value in graph.output}.union(*map(reads, graph.node))
    for index in reversed(range(len(graph.initializer))):
        if graph.initializer[index].name in numbers.keys() - read_still:
            del graph.initializer[index]


_WHOLE, _FEW = (TensorProto.INT64, TensorProto.INT32), 16


def taking_the_second_way(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
    """The graph with every choice made for its second way, which is right for every image.

    Returns:
        The graph, and the names of what decides, which are outputs after its own; not of choices in a loop's body.
        Without a choice, the graph itself and nothing.
    """
    if not any(node.name.startswith(PREFIX) for node in all_nodes(model.graph)):
        return model, []
    result = onnx.ModelProto()
    result.CopyFrom(model)
    conditions = {node.input[0]: None for node in result.graph.node if node.name.startswith(PREFIX)}
    never = f'{PREFIX}never'
    result.graph.initializer.append(helper.make_tensor(never, TensorProto.BOOL, [], [False]))
    for node in all_nodes(result.graph):
        if node.name.startswith(PREFIX):
            node.input[0] = never
    result.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in conditions)
    return result, list(conditions)
