"""Primitives of CrowdDet, whose proposals answer for several people each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..export.repeats import settle
from ..export.shapes import python_shape
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter


@REWRITERS.register_module()
class MultiInstancePredict(FunctionRewriter):
    """Takes the head's raw boxes and scores, and numbers the boxes' proposals by tensors; the original does it in
    NumPy, which freezes their number.

    One proposal more than there are is handed in and its boxes are dropped again: the original's early return for none
    would be frozen.
    """

    target = 'mmdet.models.roi_heads.bbox_heads.multi_instance_bbox_head.MultiInstanceBBoxHead._predict_by_feat_single'

    def __call__(
        self,
        origin: Callable,
        head: Any,
        roi: Tensor,
        cls_score: Tensor,
        bbox_pred: Tensor,
        img_meta: dict,
        rescale: bool = False,
        rcnn_test_cfg: Any = None,
    ) -> Any:
        if rcnn_test_cfg is None:
            return origin(head, roi, cls_score, bbox_pred, img_meta, rescale, rcnn_test_cfg)
        rows = (torch.cat([part, part.new_zeros(1, python_shape(part)[1])]) for part in (roi, cls_score, bbox_pred))
        results = origin(head, *rows, img_meta, rescale=rescale, rcnn_test_cfg=None)
        boxes, scores = results.bboxes[: -head.num_instance], results.scores[: -head.num_instance]
        index = torch.arange(boxes.shape[0], device=boxes.device)
        proposal = torch.div(index, head.num_instance, rounding_mode='floor').to(boxes)
        dets, det_scores = head.set_nms(
            torch.cat([boxes, proposal[:, None]], dim=1),
            scores[:, 1],
            rcnn_test_cfg.score_thr,
            rcnn_test_cfg.nms['iou_threshold'],
            rcnn_test_cfg.max_per_img,
        )
        found = type(results)()
        found.bboxes, found.scores = dets[:, :-1], det_scores
        found.labels = torch.zeros_like(det_scores)
        return found


@REWRITERS.register_module()
class SetNMS(FunctionRewriter):
    """Greedy NMS in which boxes of one proposal do not suppress each other, in few rounds of matrix products."""

    target = 'mmdet.models.roi_heads.bbox_heads.multi_instance_bbox_head.MultiInstanceBBoxHead.set_nms'

    def __call__(
        self,
        origin: Callable,
        bboxes: Tensor,
        scores: Tensor,
        score_thr: float,
        iou_threshold: float,
        max_num: int = -1,
    ) -> tuple[Tensor, Tensor]:
        from mmdet.structures.bbox import bbox_overlaps

        chosen = (scores > score_thr).nonzero().squeeze(1)
        bboxes, scores = bboxes[chosen], scores[chosen]
        ordered_scores, order = scores.sort(descending=True)
        ordered, proposal = bboxes[order][:, :4], bboxes[order][:, 4]
        place = torch.arange(ordered.shape[0], device=bboxes.device)
        suppresses = (
            (bbox_overlaps(ordered, ordered) > iou_threshold)
            & (proposal[:, None] != proposal)
            & (place[:, None] < place)
        )
        keep = settle(suppresses.to(bboxes))
        # back in the order of the candidates, which is that of the answer, and of what max_num cuts off
        kept = torch.zeros_like(keep).scatter(0, order, keep).nonzero().squeeze(1)
        return bboxes[kept][:max_num], scores[kept][:max_num]
