"""A part of the model that runs once for each of many alike inputs: an ONNX ``Loop``.

A tracer records what ran, once. So a part is recorded for a single input, between two marks, and the graph is then cut
there: what lies between the marks becomes the body of the loop. In the model's own code nothing changes, and within
the body every size is fixed although the number of inputs is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx
import torch
from onnx import TensorProto, helper
from torch import Tensor

from ..errors import ExportError
from .graphs import reads, set_nodes, subgraphs
from .shapes import tracing_paused

DOMAIN = 'mmdeploy_lite.marks'
"""Of the two marks; no finished graph has them."""


class _Begin(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, items: Tensor) -> Tensor:
        return items[0].clone()

    @staticmethod
    def symbolic(g: Any, items: Any) -> Any:
        sizes = items.type().sizes()
        return g.op(f'{DOMAIN}::Begin', items).setType(items.type().with_sizes(None if sizes is None else sizes[1:]))


class _End(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, result: Tensor, items: Tensor) -> Tensor:
        with tracing_paused():
            return result.new_zeros(len(items), *result.shape)

    @staticmethod
    def symbolic(g: Any, result: Any, items: Any) -> Any:
        sizes = result.type().sizes()
        kind = result.type().with_sizes(None if sizes is None else [None, *sizes])
        return g.op(f'{DOMAIN}::End', result, items).setType(kind)


def begin(items: Tensor) -> Tensor:
    """The first of ``items`` (T, ...), from here on standing for each of them."""
    return _Begin.apply(items)


def end(result: Tensor, items: Tensor) -> Tensor:
    """What became of each of ``items``: (T, *result.shape).

    Only while tracing: the shape is right, the values are not.
    """
    return _End.apply(result, items)


def close_loops(model: onnx.ModelProto) -> None:
    """Put a ``Loop`` in the place of each pair of marks, in place.

    Raises:
        ExportError: what lies between the marks is also used behind them, or does not end.
    """
    while any((node.domain, node.op_type) == (DOMAIN, 'Begin') for node in model.graph.node):
        _close(model.graph)
    kept = [entry for entry in model.opset_import if entry.domain != DOMAIN]
    del model.opset_import[:]
    model.opset_import.extend(kept)


def _close(graph: onnx.GraphProto) -> None:
    """Make a loop of the first mark and its end."""
    nodes = list(graph.node)
    mark = next(node for node in nodes if (node.domain, node.op_type) == (DOMAIN, 'Begin'))
    inside, results = {mark.output[0]}, []
    body: list[onnx.NodeProto] = []
    for node in nodes[nodes.index(mark) + 1 :]:  # in topological order
        if not inside & reads(node):
            continue
        if (node.domain, node.op_type) == (DOMAIN, 'End'):
            results.append(node)
            continue
        body.append(node)
        inside |= set(node.output)
    if len(results) != 1:
        raise ExportError(f'a loop over parts of the image has {len(results)} ends; it needs one')
    (last,) = results
    needed = _needed(body, last.input[0])
    body = [node for node in body if set(node.output) & needed]
    between = {name for node in body for name in node.output}
    outside = [node for node in nodes if node is not mark and node is not last and node not in body]
    used = {name for node in outside for name in reads(node)} | {value.name for value in graph.output}
    if leaked := sorted(between & used):
        raise ExportError(f'a loop over parts of the image is left other than at its end: {", ".join(leaked[:3])}')
    loop = _loop(mark, last, body)
    place = nodes.index(last)
    rest = [node for node in nodes[:place] if node not in body and node is not mark]
    after = [node for node in nodes[place + 1 :] if node not in body]
    # what the body reads from outside comes before the end, as everything there did
    set_nodes(graph, [*rest, *loop, *after])


def _needed(body: list[onnx.NodeProto], result: str) -> set[str]:
    """Names on the way to ``result``."""
    needed = {result}
    for node in reversed(body):
        if needed & set(node.output):
            needed |= reads(node)
    return needed


def _loop(mark: onnx.NodeProto, last: onnx.NodeProto, body: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    items, item, result = mark.input[0], mark.output[0], last.input[0]
    prefix = f'{item}_loop'
    index, going, still = f'{prefix}_index', f'{prefix}_going', f'{prefix}_still'
    pick = [
        helper.make_node('Gather', [items, index], [item], axis=0),
        *body,
        helper.make_node('Identity', [going], [still]),
    ]
    scalar = [helper.make_tensor_value_info(index, TensorProto.INT64, [])]
    flags = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in (going, still)]
    out = onnx.ValueInfoProto(name=result)
    out.type.tensor_type.elem_type = TensorProto.FLOAT
    graph = helper.make_graph(pick, f'{prefix}_body', [*scalar, flags[0]], [flags[1], out])
    count, always = f'{prefix}_count', f'{prefix}_always'
    return [
        helper.make_node('Shape', [items], [f'{prefix}_sizes'], start=0, end=1),
        helper.make_node('Constant', [], [f'{prefix}_axis'], value=helper.make_tensor('', TensorProto.INT64, [1], [0])),
        helper.make_node('Squeeze', [f'{prefix}_sizes', f'{prefix}_axis'], [count]),
        helper.make_node('Constant', [], [always], value=helper.make_tensor('', TensorProto.BOOL, [], [True])),
        helper.make_node('Loop', [count, always], [last.output[0]], body=graph),
    ]


def distinct_names(graph: onnx.GraphProto, outer: Iterable[str] = ()) -> None:
    """Rename what a loop's body defines under a name that is known outside, in place.

    ONNX forbids that, and ONNX Runtime's optimizer does it: it names the constants it makes in a body as it names those
    outside.
    """
    outer = set(outer)
    defined = {name for node in graph.node for name in node.output} | {item.name for item in graph.initializer}
    defined |= {value.name for value in graph.input}
    new = {name: f'{name}_in_{graph.name or "body"}' for name in defined & outer - {''}}
    _rename(graph, new)
    known = outer | (defined - new.keys()) | set(new.values())
    for node in graph.node:
        for sub in subgraphs(node):
            distinct_names(sub, known)


def _rename(graph: onnx.GraphProto, new: dict[str, str]) -> None:
    if not new:
        return
    for item in [*graph.initializer, *graph.input, *graph.output, *graph.value_info]:
        item.name = new.get(item.name, item.name)
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [new.get(name, name) for name in names]
        for sub in subgraphs(node):
            _rename(sub, new)
