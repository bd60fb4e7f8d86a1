"""Faults of rewriters: each is put in place of a good one, or beside them, the way a user overrides one."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch.nn.functional as F
from torch import Tensor

from ...registry import REWRITERS
from ...rewriters import mmseg_slide
from ...rewriters.mmcv_ops import BatchedNMS
from ...rewriters.mmdet_boxes import Delta2BBox, Distance2BBox
from ...rewriters.mmdet_dense import FilterScoresAndTopk
from ...rewriters.mmseg_slide import SlideInference, TracedGrid
from ...rewriting import FunctionRewriter


@REWRITERS.register_module()
class FaultyClassAgnosticNMS(BatchedNMS):
    """Boxes of all classes, and of all levels of an RPN, compete."""

    def __call__(self, origin: Callable, boxes: Tensor, scores: Tensor, idxs: Tensor, nms_cfg: Any, *_: Any) -> Any:
        return super().__call__(origin, boxes, scores, idxs * 0, nms_cfg, True)


@REWRITERS.register_module()
class FaultyDelta2BBox(Delta2BBox):
    """Clips boxes to an image with padding."""

    def __call__(self, origin: Callable, *args: Any, max_shape: Any = None, **kwargs: Any) -> Any:
        rest = args[5:]
        if len(args) > 4:
            max_shape = args[4]
        return super().__call__(origin, *args[:4], _with_padding(max_shape), *rest, **kwargs)


@REWRITERS.register_module()
class FaultyDistance2BBox(Distance2BBox):
    """Clips boxes to an image with padding."""

    def __call__(self, origin: Callable, points: Tensor, distance: Tensor, max_shape: Any = None) -> Any:
        return super().__call__(origin, points, distance, _with_padding(max_shape))


def _with_padding(max_shape: Any) -> Any:
    return max_shape if max_shape is None else [side + 17 for side in max_shape[:2]]


@REWRITERS.register_module()
class FaultyBestClassOnly(FilterScoresAndTopk):
    """One class for each anchor: the best."""

    def __call__(self, origin: Callable, scores: Tensor, *args: Any, **kwargs: Any) -> Any:
        best = scores.max(dim=1, keepdim=True)[0]
        return super().__call__(origin, scores * (scores >= best), *args, **kwargs)


@REWRITERS.register_module()
class FaultyStridedPool(FunctionRewriter):
    """A pool whose windows are as large as those of the traced image, and all of one size."""

    target = 'torch.nn.functional.adaptive_avg_pool2d'

    def __call__(self, origin: Callable, image: Tensor, output_size: Any) -> Tensor:
        sizes = (output_size, output_size) if isinstance(output_size, int) else output_size
        with warnings.catch_warnings():  # the tracer's, by which the audit would find it
            warnings.simplefilter('ignore')
            kernel = [int(side) // size for side, size in zip(image.shape[-2:], sizes, strict=True)]
        return F.avg_pool2d(image, kernel, kernel)


@REWRITERS.register_module()
class FaultyMissingWindow(SlideInference):
    """The last window of each row is not added, where another sees the pixel."""

    def __call__(self, *args: Any) -> Tensor:
        covering = TracedGrid.covering

        def without_last(grid: TracedGrid) -> Any:
            found = covering(grid)
            place, there = found[-1]
            seen = sum(other.long() for _, other in found[:-1])
            kept = there & (seen == 0)
            return [*found[:-1], (place.where(kept, grid.count * grid.window), kept)]

        with mock.patch.object(mmseg_slide.TracedGrid, 'covering', without_last):
            return super().__call__(*args)


@REWRITERS.register_module()
class FaultyPoints(FunctionRewriter):
    """Priors of points in the corner of their cell instead of the middle, or the other way round."""

    target = 'mmdet.models.task_modules.prior_generators.point_generator.MlvlPointGenerator.single_level_grid_priors'

    def __call__(self, origin: Callable, generator: Any, featmap_size: Any, level_idx: int, *args: Any, **kwargs: Any):
        points = origin(generator, featmap_size, level_idx, *args, **kwargs)
        width, height = generator.strides[level_idx]
        return points + points.new_tensor([width / 2, height / 2, 0, 0][: points.shape[1]])


@REWRITERS.register_module()
class FaultyAnchors(FunctionRewriter):
    """Anchors moved by half a cell."""

    target = 'mmdet.models.task_modules.prior_generators.anchor_generator.AnchorGenerator.single_level_grid_priors'

    def __call__(self, origin: Callable, generator: Any, featmap_size: Any, level_idx: int, *args: Any, **kwargs: Any):
        anchors = origin(generator, featmap_size, level_idx, *args, **kwargs)
        width, height = generator.strides[level_idx]
        return anchors + anchors.new_tensor([width / 2, height / 2] * 2)


DETECTORS = ('demo detector', 'RetinaNet', 'YOLOX', 'Faster R-CNN', 'Mask R-CNN')
REWRITER_FAULTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    'class-agnostic for class-aware': ({'batched_nms': dict(type='FaultyClassAgnosticNMS')}, DETECTORS),
    'clipping to padding': (
        {
            'delta2bbox': dict(type='FaultyDelta2BBox'),
            'distance2bbox': dict(type='FaultyDistance2BBox'),
        },
        ('demo detector', 'RetinaNet', 'Faster R-CNN', 'Mask R-CNN'),
    ),
    'one class for each anchor': (
        {'filter_scores_and_topk': dict(type='FaultyBestClassOnly')},
        ('demo detector', 'RetinaNet'),
    ),
    'adaptive pool by strided pool': (
        {'adaptive_avg_pool2d': dict(type='FaultyStridedPool')},
        ('PSPNet', 'demo segmentor'),
    ),
    'one window missing': ({'slide_inference': dict(type='FaultyMissingWindow')}, ('demo segmentor',)),
    'points moved by half a cell': ({'points': dict(type='FaultyPoints')}, ('demo detector', 'YOLOX')),
    'anchors moved by half a cell': (
        {'anchors': dict(type='FaultyAnchors')},
        ('RetinaNet', 'Faster R-CNN', 'Mask R-CNN'),
    ),
}
"""By name: the rewriters, as ``deploy.rewriters`` would name them, and the fixtures that come through them."""
