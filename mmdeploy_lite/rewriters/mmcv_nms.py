"""NMS outside ``batched_nms``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..export.operators import REJECTED, non_max_suppression
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter


@REWRITERS.register_module()
class NMS(FunctionRewriter):
    """One ``NonMaxSuppression`` node."""

    target = 'mmcv.ops.nms.nms'

    def __call__(
        self,
        origin: Callable,
        boxes: Any,
        scores: Any,
        iou_threshold: float,
        offset: int = 0,
        score_threshold: float = 0,
        max_num: int = -1,
    ) -> Any:
        if not isinstance(boxes, Tensor):
            return origin(boxes, scores, iou_threshold, offset, score_threshold, max_num)
        # a box of negative size suppresses nothing in mmcv; as a box of no area it does not in ONNX
        corners = torch.cat([boxes[:, :2], torch.maximum(boxes[:, :2], boxes[:, 2:] + offset)], dim=1)
        threshold = score_threshold if score_threshold > 0 else None
        keep = non_max_suppression(corners, scores, iou_threshold, threshold, max_num)
        return torch.cat([boxes[keep], scores[keep][:, None]], dim=1), keep


@REWRITERS.register_module()
class CornerNMS(FunctionRewriter):
    """Hands the original one rejected box more, for NMS to drop: it returns early for no boxes, which would be frozen.

    Of corners that fit together there may be none in an image.
    """

    target = (
        'mmdet.models.dense_heads.corner_head.CornerHead._bboxes_nms',
        'mmdet.models.dense_heads.centernet_head.CenterNetHead._bboxes_nms',
    )

    def __call__(self, origin: Callable, head: Any, bboxes: Tensor, labels: Tensor, cfg: Any) -> tuple[Tensor, Tensor]:
        rejected = torch.cat([bboxes.new_zeros(1, 4), bboxes.new_full((1, 1), REJECTED)], dim=1)
        return origin(head, torch.cat([bboxes, rejected]), torch.cat([labels, labels.new_zeros(1)]), cfg)
