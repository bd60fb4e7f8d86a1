"""Slices that keep everything, removed.

mmseg cuts the padding off the logits before it resizes them. Where there is none that is three copies of the largest
tensor of the graph, which neither ONNX Runtime nor the other optimizers see through when sizes are dynamic.
"""

from __future__ import annotations

from typing import Any

import onnx
from onnxscript import ir
from onnxscript.rewriter import pattern

INT64_MAX = 2**63 - 1


class WholeSlice(pattern.RewriteRuleClassBase):
    """``Slice(x, 0, size of x, axis)`` is ``x``, be the size a number or read from ``x`` in the graph."""

    def pattern(
        self, op: Any, data: ir.Value, starts: ir.Value, ends: ir.Value, axes: ir.Value, steps: ir.Value
    ) -> Any:
        return op.Slice(data, starts, ends, axes, steps)

    def check(
        self, context: Any, data: ir.Value, starts: ir.Value, ends: ir.Value, axes: ir.Value, steps: ir.Value, **_: Any
    ) -> pattern.MatchResult:
        result = pattern.MatchResult()
        first, axis, step = (_number(value) for value in (starts, axes, steps))
        if first != 0 or step != 1 or axis is None or axis < 0 or not _is_size(ends, data, axis):
            result.fail('keeps a part')
        return result

    def rewrite(self, op: Any, data: ir.Value, **_: Any) -> Any:
        return op.Identity(data)


def drop_whole_slices(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph with an Identity in the place of each slice that keeps everything.

    Args:
        model: with its constants folded; is not changed.

    Returns:
        ``model`` itself when there is no such slice.
    """
    graph = ir.from_proto(onnx.shape_inference.infer_shapes(model, data_prop=True))
    found = pattern.RewriteRuleSet([WholeSlice.rule()]).apply_to_model(graph)
    return ir.to_proto(graph) if found else model


def _number(value: ir.Value | None) -> int | None:
    """The single integer that a constant holds."""
    constant = None if value is None else value.const_value
    return int(constant.numpy().item()) if constant is not None and constant.size == 1 else None


def _is_size(end: ir.Value, data: ir.Value, axis: int) -> bool:
    """``end`` is not less than the size of ``data`` along ``axis``, for every input of the graph."""
    number = _number(end)
    if number is not None:
        size = data.shape[axis] if data.shape is not None else None
        return number == INT64_MAX or (isinstance(size, int) and number >= size)
    size_of = _source(end, 'Unsqueeze', 'Squeeze')
    if size_of is None or size_of.op_type != 'Gather' or _number(size_of.inputs[1]) != axis:
        return False
    shape = _source(size_of.inputs[0])
    if shape is None or shape.op_type != 'Shape' or shape.attributes.get_int('start', 0) or 'end' in shape.attributes:
        return False
    return _same(shape.inputs[0]) is _same(data)


def _source(value: ir.Value, *passed: str) -> ir.Node | None:
    """The node that computes ``value``, beyond nodes that only pass it on."""
    node = value.producer()
    while node is not None and node.op_type in ('Identity', *passed):
        node = node.inputs[0].producer()
    return node


def _same(value: ir.Value) -> ir.Value:
    """What ``value`` is a copy of: this pass leaves an Identity in the place of a slice."""
    while (node := value.producer()) is not None and node.op_type == 'Identity':
        value = node.inputs[0]
    return value
