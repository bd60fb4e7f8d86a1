"""The operators of :mod:`~mmdeploy_lite.export.operators` for ``torch.export``, and what they are in ONNX.

There a function that computes in PyTorch and becomes another operator in the graph is an operator of a PyTorch library.
Of one whose result's size depends on values nobody knows the size while exporting; it is taken for two or more, as if
the image showed objects, so that the libraries' early returns for none, and their branches for one, are not taken. The
graph's operators take any number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from onnxscript import opset18 as op
from torch import Tensor

from . import symbolic_loops
from .operators import _NonMaxSuppression, _RoIAlign
from .shapes import SOME


@torch.library.custom_op('mmdeploy_lite::non_max_suppression', mutates_args=())
def _nms(boxes: Tensor, scores: Tensor, iou_threshold: float, score_threshold: float, max_num: int) -> Tensor:
    # values are there in the draft mode alone, where what is followed are operators: there is something to follow
    keep = _NonMaxSuppression.forward(None, boxes, scores, iou_threshold, score_threshold, max_num)
    return torch.cat([keep, keep.new_zeros(max(min(SOME, max_num) - len(keep), 0))])


@_nms.register_fake
def _nms_fake(boxes: Tensor, scores: Tensor, iou_threshold: float, score_threshold: float, max_num: int) -> Tensor:
    count = torch.library.get_ctx().new_dynamic_size(min=min(SOME, max_num), max=max_num)
    return boxes.new_empty(count, dtype=torch.int64)


def _nms_onnx(boxes: Any, scores: Any, iou_threshold: float, score_threshold: float, max_num: int) -> Any:
    selected = op.NonMaxSuppression(
        op.Unsqueeze(boxes, op.Constant(value_ints=[0])),
        op.Unsqueeze(scores, op.Constant(value_ints=[0, 1])),
        op.Constant(value_ints=[max_num]),
        op.Constant(value_floats=[iou_threshold]),
        op.Constant(value_floats=[score_threshold]),
    )
    return op.Gather(selected, op.Constant(value_int=2), axis=1)


@torch.library.custom_op('mmdeploy_lite::roi_align', mutates_args=())
def _roi_align(
    features: Tensor, rois: Tensor, height: int, width: int, spatial_scale: float, sampling_ratio: int, aligned: bool
) -> Tensor:
    return _RoIAlign.forward(None, features, rois, (height, width), spatial_scale, sampling_ratio, aligned)


@_roi_align.register_fake
def _roi_align_fake(
    features: Tensor, rois: Tensor, height: int, width: int, spatial_scale: float, sampling_ratio: int, aligned: bool
) -> Tensor:
    return features.new_empty(rois.shape[0], features.shape[1], height, width)


def _roi_align_onnx(
    features: Any, rois: Any, height: int, width: int, spatial_scale: float, sampling_ratio: int, aligned: bool
) -> Any:
    one, five = (op.Constant(value_ints=[value]) for value in (1, 5))
    return op.RoiAlign(
        features,
        op.Slice(rois, one, five, one),
        op.Cast(op.Gather(rois, op.Constant(value_int=0), axis=1), to=7),  # int64
        coordinate_transformation_mode='half_pixel' if aligned else 'output_half_pixel',
        mode='avg',
        output_height=height,
        output_width=width,
        sampling_ratio=sampling_ratio,
        spatial_scale=spatial_scale,
    )


def translations() -> dict[Any, Callable]:
    """Per operator, the function that makes ONNX of it."""
    ops = torch.ops.mmdeploy_lite
    single = {ops.non_max_suppression.default: _nms_onnx, ops.roi_align.default: _roi_align_onnx}
    return {**single, **symbolic_loops.translations()}
