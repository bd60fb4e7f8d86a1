"""Primitives of mmdet's RoI heads with more than a mask: SCNet, PointRend, Mask Scoring R-CNN."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..export.tracing import is_symbolic
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter


@REWRITERS.register_module()
class SCNetGlobalContext(FunctionRewriter):
    """Adds each RoI its image's context by one Gather; the original's loop over images with RoIs is frozen."""

    target = 'mmdet.models.roi_heads.scnet_roi_head.SCNetRoIHead._fuse_glbctx'

    def __call__(self, origin: Callable, head: Any, roi_feats: Tensor, glbctx_feat: Tensor, rois: Tensor) -> Tensor:
        return roi_feats + glbctx_feat[rois[:, 0].long()]


@REWRITERS.register_module()
class PointsInFeatures(FunctionRewriter):
    """Scales points by the size of the feature map as it is traced; the original makes constants of it."""

    target = 'mmcv.ops.point_sample.abs_img_point_to_rel_img_point'

    def __call__(
        self, origin: Callable, abs_img_points: Tensor, img: Sequence[Any] | Tensor, spatial_scale: float = 1.0
    ) -> Tensor:
        height, width = img.shape[2:] if isinstance(img, Tensor) else img
        sizes = [size if isinstance(size, Tensor) else torch.tensor(size) for size in (width, height)]
        return abs_img_points / torch.stack(sizes).to(abs_img_points).view(1, 1, 2) * spatial_scale


class _Rows:
    """A tensor of which ``x[range(n), labels]`` picks from all of its rows, whatever their number."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __getitem__(self, index: tuple[range, Tensor]) -> Tensor:
        return self.tensor[torch.arange(self.tensor.shape[0], device=self.tensor.device), index[1]]

    def split(self, *args: Any) -> Sequence[Tensor]:
        return self.tensor.split(*args)


@contextlib.contextmanager
def _any_range(function: Callable) -> Iterator[None]:
    """``range`` of a symbol, in the module of a function; the original makes a number of it. :class:`_Rows` reads none.

    Under ``torch.export`` alone: the tracer's numbers of rows are tensors, of which ``range`` takes the traced value.
    """
    if not is_symbolic():
        yield
        return
    names = function.__globals__
    names['range'] = lambda *numbers: slice(*numbers)
    try:
        yield
    finally:
        del names['range']


@REWRITERS.register_module()
class MaskScoringPredict(FunctionRewriter):
    """Picks the mask of each object's class from all rows, of which ``torch.export`` does not know the number."""

    target = 'mmdet.models.roi_heads.mask_scoring_roi_head.MaskScoringRoIHead.predict_mask'
    only = 'symbolic'

    def __call__(self, origin: Callable, *args: Any, **kwargs: Any) -> Any:
        with _any_range(inspect.unwrap(origin)):
            return origin(*args, **kwargs)


@REWRITERS.register_module()
class MaskScoringForward(FunctionRewriter):
    """Masks that the IoU head's ``mask_preds[range(n), labels]`` picks from by a traced n."""

    target = 'mmdet.models.roi_heads.mask_scoring_roi_head.MaskScoringRoIHead._mask_forward'

    def __call__(self, origin: Callable, head: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        results = origin(head, *args, **kwargs)
        return {**results, 'mask_preds': _Rows(results['mask_preds'])}


@REWRITERS.register_module()
class MaskIoUPredict(FunctionRewriter):
    """As :class:`MaskScoringForward`, for the IoUs that scores are multiplied with."""

    target = 'mmdet.models.roi_heads.mask_heads.maskiou_head.MaskIoUHead.predict_by_feat'

    def __call__(self, origin: Callable, head: Any, mask_iou_preds: Sequence[Tensor], results_list: list[Any]) -> Any:
        with _any_range(inspect.unwrap(origin)):
            return origin(head, [_Rows(pred) for pred in mask_iou_preds], results_list)
