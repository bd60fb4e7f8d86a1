"""Primitives of side-aware boundary localization (SABL)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..export.shapes import python_shape
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter
from .mmdet_boxes import clip_boxes


@REWRITERS.register_module()
class Bucket2BBox(FunctionRewriter):
    """Decodes with the original and clips afterwards, to traced sizes."""

    target = 'mmdet.models.task_modules.coders.bucketing_bbox_coder.bucket2bbox'

    def __call__(
        self,
        origin: Callable,
        proposals: Tensor,
        cls_preds: Tensor,
        offset_preds: Tensor,
        num_buckets: int,
        scale_factor: float = 1.0,
        max_shape: Sequence[Any] | None = None,
        clip_border: bool = True,
    ) -> tuple[Tensor, Tensor]:
        boxes, confidence = origin(proposals, cls_preds, offset_preds, num_buckets, scale_factor, None, clip_border)
        if clip_border and max_shape is not None:
            boxes = clip_boxes(boxes, (max_shape[0] - 1, max_shape[1] - 1))
        return boxes, confidence


@REWRITERS.register_module()
class SABLHeadPredict(FunctionRewriter):
    """Hands the original one RoI more, of which the head is sure that it is background, for NMS to drop: its
    ``view(n, -1, 4)`` is no shape that ONNX has for n = 0.
    """

    target = 'mmdet.models.roi_heads.bbox_heads.sabl_head.SABLHead._predict_by_feat_single'

    def __call__(
        self, origin: Callable, head: Any, roi: Tensor, cls_score: Any, bbox_pred: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if isinstance(cls_score, list):
            cls_score = sum(cls_score) / float(len(cls_score))
        classes = python_shape(cls_score)[1] - 1
        background = torch.cat([cls_score.new_zeros(1, classes), cls_score.new_full((1, 1), 1e4)], dim=1)
        roi, *bbox_pred = (torch.cat([rows, rows.new_zeros(1, python_shape(rows)[1])]) for rows in (roi, *bbox_pred))
        return origin(head, roi, torch.cat([cls_score, background]), tuple(bbox_pred), *args, **kwargs)
