"""Score voting of PAA (https://arxiv.org/abs/2007.08103)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..registry import REWRITERS
from ..rewriting import FunctionRewriter


@REWRITERS.register_module()
class ScoreVoting(FunctionRewriter):
    """All detections at once; the original loops over classes and over the detections of this one image.

    Each box becomes the mean of the candidates of its class that overlap it, weighted by their scores and by how much
    they do.
    """

    target = 'mmdet.models.dense_heads.paa_head.PAAHead.score_voting'

    def __call__(
        self,
        origin: Callable,
        head: Any,
        det_bboxes: Tensor,
        det_labels: Tensor,
        mlvl_bboxes: Tensor,
        mlvl_nms_scores: Tensor,
        score_thr: float,
    ) -> tuple[Tensor, Tensor]:
        from mmdet.structures.bbox import bbox_overlaps

        # class by class, as the original has them
        place = torch.arange(det_labels.shape[0], device=det_labels.device)
        order = (det_labels * det_labels.shape[0] + place).argsort()
        det_bboxes, det_labels = det_bboxes[order], det_labels[order]
        ious = bbox_overlaps(det_bboxes[:, :4], mlvl_bboxes)
        scores = mlvl_nms_scores.t()[det_labels]
        weights = torch.exp(-((1 - ious) ** 2) / 0.025) * scores
        weights = torch.where((scores > score_thr) & (ious > 0.01), weights, torch.zeros_like(weights))
        voted = weights @ mlvl_bboxes / weights.sum(dim=1, keepdim=True)
        return torch.cat([voted, det_bboxes[:, 4:]], dim=1), det_labels
