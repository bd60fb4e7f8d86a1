"""Primitives of mmdet's panoptic and query masks: MaskFormer, Mask2Former, Panoptic FPN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..export.repeats import lay_masks
from ..export.shapes import axis_size, python_shape
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter


@REWRITERS.register_module()
class Mask2BBox(FunctionRewriter):
    """The tight box of every mask at once; the original's loop over masks is frozen."""

    target = 'mmdet.structures.mask.utils.mask2bbox'

    def __call__(self, origin: Callable, masks: Tensor) -> Tensor:
        (x1, x2), (y1, y2) = (_extent(masks.any(dim=axis)) for axis in (1, 2))
        boxes = torch.stack([x1, y1, x2, y2], dim=1)
        return torch.where((x2 > 0)[:, None], boxes, torch.zeros_like(boxes)).float()


def _extent(taken: Tensor) -> tuple[Tensor, Tensor]:
    """First place and the one after the last along (n, size) bool; (size, 0) where there is none."""
    size = taken.shape[1]
    places = torch.arange(size, device=taken.device)
    first = torch.where(taken, places, torch.full_like(places, size)).amin(dim=1)
    last = torch.where(taken, places + 1, torch.zeros_like(places)).amax(dim=1)
    return first, last


def count_of(ids: Tensor, kinds: int | Tensor) -> Tensor:
    """(kinds,) int64: how often each of 0, 1, ... is among ``ids``."""
    flat = ids.flatten()
    return torch.zeros(kinds, dtype=torch.long, device=ids.device).scatter_add(0, flat, torch.ones_like(flat))


@REWRITERS.register_module()
class MaskFormerPanoptic(FunctionRewriter):
    """The panoptic map of all queries at once; the original's loop over those kept, with ``item()``, is frozen.

    A query that is not kept has a probability below all others, so that it wins no pixel. What a query's pixels become
    is looked up: ``category + number * INSTANCE_OFFSET``, or no class where it was dropped.
    """

    target = (
        'mmdet.models.seg_heads.panoptic_fusion_heads.maskformer_fusion_head.MaskFormerFusionHead.panoptic_postprocess'
    )

    def __call__(self, origin: Callable, head: Any, mask_cls: Tensor, mask_pred: Tensor) -> Any:
        from mmdet.evaluation.functional import INSTANCE_OFFSET
        from mmengine.structures import PixelData

        cfg = head.test_cfg
        scores, labels = F.softmax(mask_cls, dim=-1).max(-1)
        masks = mask_pred.sigmoid()
        kept = labels.ne(head.num_classes) & (scores > cfg.get('object_mask_thr', 0.8))
        # no sum or product: a kept query's probabilities must be what they are in the original
        winners = torch.where(kept[:, None, None], scores[:, None, None] * masks, masks.new_full((), -1.0)).argmax(0)
        areas = count_of(winners, python_shape(mask_cls)[0])
        own_areas = (masks >= 0.5).sum((1, 2))
        # in float64, as Python divides whole numbers
        covered = areas.double() / own_areas.double()
        kept = kept & (areas > 0) & (own_areas > 0) & (covered >= cfg.get('iou_thr', 0.8))
        things = labels < head.num_things_classes
        numbers = (kept & things).long().cumsum(0) * things.long()
        values = torch.where(kept, labels + numbers * INSTANCE_OFFSET, torch.full_like(labels, head.num_classes))
        panoptic = values[winners]
        if cfg.get('filter_low_score', False):
            sure = masks.gather(0, winners[None])[0] >= 0.5
            panoptic = torch.where(sure, panoptic, torch.full_like(panoptic, head.num_classes))
        return PixelData(sem_seg=panoptic[None])


@REWRITERS.register_module()
class HeuristicFusion(FunctionRewriter):
    """Masks laid in a ``Loop`` (https://arxiv.org/abs/1801.00868), and looked up what each becomes.

    The original's loops over masks and classes are frozen as they ran for one image.
    """

    target = 'mmdet.models.seg_heads.panoptic_fusion_heads.heuristic_fusion_head.HeuristicFusionHead._predict_single'

    def __call__(self, origin: Callable, head: Any, mask_results: Any, seg_preds: Tensor, **kwargs: Any) -> Any:
        from mmdet.evaluation.functional import INSTANCE_OFFSET
        from mmengine.structures import PixelData

        order = torch.sort(-mask_results.scores)[1]
        labels, masks = mask_results.labels[order], mask_results.masks[order]
        ids = lay_masks(masks, float(head.test_cfg.mask_overlap))
        present = count_of(ids, axis_size(labels, 0) + 1)[1:] > 0
        segments = labels + present.long().cumsum(0) * INSTANCE_OFFSET
        stuff = seg_preds.argmax(dim=0) + head.num_things_classes
        panoptic = torch.where(ids > 0, torch.cat([labels.new_zeros(1), segments])[ids], stuff)
        categories = panoptic % INSTANCE_OFFSET
        kinds = head.num_things_classes + python_shape(seg_preds)[0]
        small = count_of(categories, kinds) < head.test_cfg.stuff_area_limit
        small = small & (torch.arange(kinds, device=small.device) >= head.num_things_classes)
        panoptic = torch.where(small[categories], torch.full_like(panoptic, head.num_classes), panoptic)
        return PixelData(sem_seg=panoptic[None].int())
