"""The loops of :mod:`~mmdeploy_lite.export.repeats` for ``torch.export``: operators there, and ``Loop`` in ONNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from onnxscript import BOOL, FLOAT, INT64, script
from onnxscript import opset18 as op
from torch import Tensor

from .repeats import _lay_masks, _settle, _soft_nms


@torch.library.custom_op('mmdeploy_lite::settle', mutates_args=())
def _settle_op(suppresses: Tensor) -> Tensor:
    return _settle(suppresses).clone()


@_settle_op.register_fake
def _settle_fake(suppresses: Tensor) -> Tensor:
    return suppresses.new_empty(suppresses.shape[1])


@script(default_opset=op)
def _settle_onnx(suppresses: FLOAT) -> FLOAT:
    keep = op.Add(op.Mul(op.ReduceSum(suppresses, [0], keepdims=0), 0.0), 1.0)
    changed = op.Cast(op.Constant(value_int=1), to=9)
    while changed:
        settled = op.Cast(op.Equal(op.MatMul(keep, suppresses), 0.0), to=1)
        differs = op.Cast(op.Not(op.Equal(settled, keep)), to=1)
        changed = op.Greater(op.ReduceSum(differs, keepdims=0), 0.0)
        keep = op.Identity(settled)
    return keep


@torch.library.custom_op('mmdeploy_lite::soft_nms', mutates_args=())
def _soft_nms_op(
    boxes: Tensor, scores: Tensor, iou_threshold: float, sigma: float, min_score: float, method: int, offset: int
) -> tuple[Tensor, Tensor]:
    decayed, taken = _soft_nms(boxes, scores, iou_threshold, sigma, min_score, method, offset)
    return decayed.clone(), taken.clone()


@_soft_nms_op.register_fake
def _soft_nms_fake(
    boxes: Tensor, scores: Tensor, iou_threshold: float, sigma: float, min_score: float, method: int, offset: int
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(scores), torch.empty_like(scores, dtype=torch.int64)


@script(default_opset=op)
def _soft_nms_onnx(
    boxes: FLOAT, scores: FLOAT, iou_threshold: float, sigma: float, min_score: float, method: int, offset: int
) -> tuple[FLOAT, INT64]:
    x1, y1, x2, y2 = op.Split(boxes, num_outputs=4, axis=1)
    axis = op.Constant(value_ints=[1])
    x1 = op.Squeeze(x1, axis)
    y1 = op.Squeeze(y1, axis)
    x2 = op.Squeeze(x2, axis)
    y2 = op.Squeeze(y2, axis)
    one = op.Cast(op.Constant(value_int=offset), to=1)
    area = (x2 - x1 + one) * (y2 - y1 + one)
    count = op.Squeeze(op.Shape(scores))
    place = op.Range(0, count, 1)
    taken = op.Expand(count, op.Shape(scores))
    turn = op.Constant(value_ints=[0])
    low = op.Constant(value_float=-3.4028234e38)
    left = op.GreaterOrEqual(scores, low)
    decayed = op.Identity(scores)
    going = op.Greater(op.ReduceSum(op.Cast(left, to=1), keepdims=0), 0.0)
    while going:
        best = op.ArgMax(op.Where(left, decayed, low), axis=0, keepdims=1)
        chosen = op.Equal(place, best)
        taken = op.Where(chosen, turn, taken)
        left = op.And(left, op.Not(chosen))
        width = op.Max(op.Min(x2, op.Gather(x2, best)) - op.Max(x1, op.Gather(x1, best)) + one, 0.0)
        height = op.Max(op.Min(y2, op.Gather(y2, best)) - op.Max(y1, op.Gather(y1, best)) + one, 0.0)
        iou = width * height / (op.Gather(area, best) + area - width * height)
        over = op.GreaterOrEqual(iou, op.Constant(value_float=iou_threshold))
        gaussian = op.Exp(op.Neg(iou * iou) / op.Constant(value_float=sigma))
        linear = op.Where(over, 1.0 - iou, 1.0)
        naive = op.Where(over, 0.0, 1.0)
        kind = op.Constant(value_int=method)
        decay = op.Where(op.Equal(kind, 2), gaussian, op.Where(op.Equal(kind, 1), linear, naive))
        decayed = op.Where(left, decayed * decay, decayed)
        left = op.And(left, op.GreaterOrEqual(decayed, op.Constant(value_float=min_score)))
        turn = turn + 1
        going = op.Greater(op.ReduceSum(op.Cast(left, to=1), keepdims=0), 0.0)
    return decayed, taken


@torch.library.custom_op('mmdeploy_lite::lay_masks', mutates_args=())
def _lay_masks_op(masks: Tensor, overlap_thr: float) -> Tensor:
    return _lay_masks(masks, overlap_thr).clone()


@_lay_masks_op.register_fake
def _lay_masks_fake(masks: Tensor, overlap_thr: float) -> Tensor:
    return masks.new_empty(masks.shape[1:], dtype=torch.int64)


@script(default_opset=op)
def _lay_masks_onnx(masks: BOOL, overlap_thr: float) -> INT64:
    shape = op.Shape(masks)
    count = op.Squeeze(op.Slice(shape, [0], [1]))
    ids = op.Expand(op.Constant(value_int=0), op.Slice(shape, [1], [3]))
    for index in range(count):
        mask = op.Gather(masks, index, axis=0)
        is_free = op.Equal(ids, 0)
        area = op.ReduceSum(op.Cast(mask, to=1), keepdims=0)
        shared = op.ReduceSum(op.Cast(op.And(mask, op.Not(is_free)), to=1), keepdims=0)
        small = op.LessOrEqual(shared / (area + 1e-5), op.Constant(value_float=overlap_thr))
        fits = op.And(op.Greater(area, 0.0), small)
        ids = op.Where(op.And(op.And(mask, is_free), fits), index + 1, ids)
    return ids


def translations() -> dict[Any, Callable]:
    """Per operator, the function that makes ONNX of it."""
    ops = torch.ops.mmdeploy_lite
    return {
        ops.settle.default: _settle_onnx,
        ops.soft_nms.default: _soft_nms_onnx,
        ops.lay_masks.default: _lay_masks_onnx,
    }
