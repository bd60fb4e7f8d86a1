"""Primitives of mmdet's RoI heads with more than a mask: SCNet, PointRend, Mask Scoring R-CNN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

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
        return origin(head, [_Rows(pred) for pred in mask_iou_preds], results_list)
