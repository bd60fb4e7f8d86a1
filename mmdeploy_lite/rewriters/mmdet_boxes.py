"""Primitives of mmdet's boxes: decoding, clipping, scaling, multi-class NMS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..export.operators import reject
from ..export.shapes import python_int, python_shape
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter
from .mmcv_ops import limited_nms


def clip_boxes(boxes: Tensor, max_shape: Sequence[Any] | Tensor) -> Tensor:
    """Clip (..., 4k) x1 y1 x2 y2 boxes to [0, w] x [0, h] without writing into slices, which traces to ScatterND.

    Args:
        boxes: boxes in pixels of the image that ``max_shape`` is the size of.
        max_shape: (h, w, ...), Python or traced numbers.
    """
    height, width = max_shape[0], max_shape[1]
    # the number of groups, not -1, which is ambiguous for no boxes
    x1, y1, x2, y2 = boxes.reshape(*boxes.shape[:-1], python_shape(boxes)[-1] // 4, 4).unbind(-1)
    clipped = torch.stack([_clip(x1, width), _clip(y1, height), _clip(x2, width), _clip(y2, height)], dim=-1)
    return clipped.reshape(boxes.shape)


def _clip(values: Tensor, upper: Any) -> Tensor:
    if isinstance(upper, Tensor):
        return torch.minimum(values.clamp(min=0), upper.to(values))
    return values.clamp(min=0, max=upper)


@REWRITERS.register_module()
class Delta2BBox(FunctionRewriter):
    """Decodes with the original and clips afterwards, out of place.

    One row more than there are boxes is decoded: the original's early return for none would be frozen, and what comes
    after it, ``reshape(n, -1)``, is no shape that ONNX has for n = 0.
    """

    target = 'mmdet.models.task_modules.coders.delta_xywh_bbox_coder.delta2bbox'

    def __call__(
        self,
        origin: Callable,
        rois: Tensor,
        deltas: Tensor,
        means: Sequence[float] = (0.0, 0.0, 0.0, 0.0),
        stds: Sequence[float] = (1.0, 1.0, 1.0, 1.0),
        max_shape: Any = None,
        wh_ratio_clip: float = 16 / 1000,
        clip_border: bool = True,
        add_ctr_clamp: bool = False,
        ctr_clamp: int = 32,
    ) -> Tensor:
        rois, deltas = (torch.cat([rows, rows.new_zeros(1, python_shape(rows)[1])]) for rows in (rois, deltas))
        boxes = origin(rois, deltas, means, stds, None, wh_ratio_clip, clip_border, add_ctr_clamp, ctr_clamp)[:-1]
        return clip_boxes(boxes, max_shape) if clip_border and max_shape is not None else boxes


@REWRITERS.register_module()
class Distance2BBox(FunctionRewriter):
    """Decodes with the original and clips afterwards, out of place."""

    target = 'mmdet.structures.bbox.transforms.distance2bbox'

    def __call__(self, origin: Callable, points: Tensor, distance: Tensor, max_shape: Any = None) -> Tensor:
        if max_shape is None or _is_per_image(max_shape):  # the original does not write into slices then
            return origin(points, distance, max_shape)
        return clip_boxes(origin(points, distance), max_shape)


def _is_per_image(max_shape: Any) -> bool:
    return max_shape.dim() == 2 if isinstance(max_shape, Tensor) else isinstance(max_shape[0], Sequence)


@REWRITERS.register_module()
class ScaleBoxes(FunctionRewriter):
    """Scales by traced factors, which the original's ``new_tensor([...])`` freezes, and takes no number of a shape."""

    target = 'mmdet.structures.bbox.transforms.scale_boxes'

    def __call__(self, origin: Callable, boxes: Any, scale_factor: Sequence[Any]) -> Any:
        if not isinstance(boxes, Tensor):
            return origin(boxes, scale_factor)
        factors = [
            factor.to(boxes) if isinstance(factor, Tensor) else boxes.new_full((), factor) for factor in scale_factor
        ]
        return boxes * torch.stack(factors).repeat(python_shape(boxes)[-1] // 2)


def inverse_scale(img_meta: dict) -> list[Any]:
    """1 / ``scale_factor`` (w, h) of a data sample, which while tracing is a tensor of two."""
    factor = img_meta['scale_factor']
    return [1 / factor[0], 1 / factor[1]]


@REWRITERS.register_module()
class MulticlassNMS(FunctionRewriter):
    """Rejects by ``score_thr`` in place instead of with NonZero, and takes ``max_num`` as a limit of NMS itself."""

    target = 'mmdet.models.layers.bbox_nms.multiclass_nms'

    def __call__(
        self,
        origin: Callable,
        multi_bboxes: Tensor,
        multi_scores: Tensor,
        score_thr: float,
        nms_cfg: dict | None,
        max_num: int = -1,
        score_factors: Tensor | None = None,
        return_inds: bool = False,
        box_dim: int = 4,
    ) -> tuple[Tensor, ...]:
        from mmcv.ops.nms import batched_nms

        box_dim = python_int(box_dim)  # the original's caller has it from a traced size
        num_classes = python_shape(multi_scores)[1] - 1  # the last column is the background's
        scores = multi_scores[:, :-1]
        accepted = scores > score_thr
        if score_factors is not None:  # the original multiplies after the threshold
            scores = scores * score_factors.view(-1, 1)
        scores = reject(scores, accepted).reshape(-1)
        if python_shape(multi_bboxes)[1] > box_dim:
            boxes = multi_bboxes.reshape(-1, box_dim)
        else:
            boxes = multi_bboxes[:, None].expand(-1, num_classes, box_dim).reshape(-1, box_dim)
        labels = torch.arange(num_classes, device=scores.device).expand(multi_scores.shape[0], -1).reshape(-1)
        if nms_cfg is not None:
            nms_cfg = limited_nms(nms_cfg, max_num)
        dets, keep = batched_nms(boxes, scores, labels, nms_cfg)
        if max_num > 0 and (nms_cfg is None or 'max_num' not in nms_cfg):
            dets, keep = dets[:max_num], keep[:max_num]
        if return_inds:
            return dets, labels[keep], keep
        return dets, labels[keep]
