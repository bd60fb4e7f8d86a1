"""Panoptic models with random weights, and thresholds that leave something to see."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..tasks import Sample
from .models import TestModel, UnfitModelError
from .silence import shift_classes

_OBJECT_THRS = (0.8, 0.5, 0.3, 0.2, 0.1, 0.05)
_IOU_THRS = (0.8, 0.5, 0.3, 0.1, 0.03)


def find_segments(model: TestModel, samples: Sequence[Sample], at_least: int = 5) -> str:
    """Lower the thresholds of a fusion head, or raise a RoI head's class scores, until the maps hold several segments.

    No query of random weights is as sure of a class and of its pixels as trained ones are, and a map without segments
    proves nothing. What is done, in place, is no more than needed.

    Args:
        model: answers panoptic maps.
        samples: images to find segments in.
        at_least: so many different segments over all images.

    Returns:
        What was done, in words; '' where nothing was.

    Raises:
        UnfitModelError: no threshold is low enough.
    """
    if count_segments(model, samples) >= at_least:
        return ''
    cfg = getattr(model.task.model.panoptic_fusion_head, 'test_cfg', None) or {}
    if 'mask_overlap' in cfg:  # of boxes and their masks
        for raised in range(1, 9):
            shift_classes(model.task.model, 0.5)
            if count_segments(model, samples) >= at_least:
                return f'tested with class scores raised by {raised / 2}'
    else:
        for object_thr in _OBJECT_THRS:
            for iou_thr in _IOU_THRS:
                cfg.update(object_mask_thr=object_thr, iou_thr=iou_thr)
                if count_segments(model, samples) >= at_least:
                    return f'tested with object_mask_thr={object_thr}, iou_thr={iou_thr}'
    raise UnfitModelError(f'the maps of all images hold less than {at_least} segments; try another seed')


def count_segments(model: TestModel, samples: Sequence[Sample]) -> int:
    """How many different segments the maps hold, but for pixels of no class."""
    task = model.task
    maps = [task.test_step(sample).pred_panoptic_seg.sem_seg.cpu().numpy() for sample in samples]
    return len(set(np.unique(np.concatenate([values.ravel() for values in maps]))) - {task.num_classes})
