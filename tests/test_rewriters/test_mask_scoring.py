"""Mask Scoring R-CNN (https://arxiv.org/abs/1903.00241) against mmdet's, of as many objects as an image shows."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import torch
from mmengine.structures import InstanceData

from mmdeploy_lite.export.tracing import is_symbolic, is_tracing
from mmdeploy_lite.rewriters.mmdet_roi_masks import _Rows

from .conftest import image

CLASSES = 4


def function(values):
    """Scores of the rows whose first value is above zero, by ``MaskScoringRoIHead.predict_mask``."""
    from mmdet.models.roi_heads.mask_heads.maskiou_head import MaskIoUHead
    from mmdet.models.roi_heads.mask_scoring_roi_head import MaskScoringRoIHead

    def mask_forward(x, rois):
        masks = rois[:, 1:, None] * torch.linspace(0.2, 1, 6)
        return dict(mask_preds=_Rows(masks) if tracing else masks, mask_feats=rois)

    def ious(features, masks):
        return masks.sum(dim=1, keepdim=True) * torch.linspace(0.1, 1, CLASSES)

    tracing = is_tracing() or is_symbolic()
    ious.predict_by_feat = functools.partial(MaskIoUHead.predict_by_feat, None)
    head = SimpleNamespace(
        _mask_forward=mask_forward,
        mask_iou_head=ious,
        mask_head=SimpleNamespace(predict_by_feat=lambda results_list, **kwargs: results_list),
        test_cfg=None,
    )
    kept = values[(values[:, 0] > 0).nonzero().squeeze(1)]
    results = InstanceData(bboxes=kept[:, :4], labels=(kept[:, 4].abs() * 2).long() % CLASSES, scores=kept[:, 5].abs())
    (results,) = MaskScoringRoIHead.predict_mask(head, [], [{}], [results])
    return results.scores


def test_each_object_gets_the_mask_and_the_iou_of_its_class(both):
    rewriters = ['MaskScoringPredict', 'MaskIoUPredict', 'SplitOfOne']
    traced = both(function, [image(0, 12, 6)], rewriters)
    assert traced.unknown == []
    for seed in (0, 1, 2, 3):
        traced.check(image(seed, 12, 6), rtol=1e-6)
