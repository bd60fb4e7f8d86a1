"""Primitives of mmdet's RoI heads."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UnsupportedError
from ..export.shapes import python_int, python_shape, tracing_paused
from ..export.tracing import current_export
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter
from .symbolic_values import UNKNOWN


@REWRITERS.register_module()
class RoIHeadPredict(FunctionRewriter):
    """Runs the RoI head image by image.

    The original splits the proposals of the batch by their numbers, ``split(tuple(len(p) for p in proposals))``,
    which freezes the
    numbers of the traced images. Of one image alone the split is the whole, whatever the number: see
    :class:`SplitOfOne`.
    """

    target = (
        'mmdet.models.roi_heads.base_roi_head.BaseRoIHead.predict',
        'mmdet.models.roi_heads.htc_roi_head.HybridTaskCascadeRoIHead.predict',
        'mmdet.models.roi_heads.scnet_roi_head.SCNetRoIHead.predict',
    )

    def __call__(
        self,
        origin: Callable,
        head: Any,
        x: tuple[Tensor, ...],
        rpn_results_list: list[Any],
        batch_data_samples: list[Any],
        rescale: bool = False,
        **kwargs: Any,
    ) -> list[Any]:
        if len(batch_data_samples) == 1:
            return origin(head, x, rpn_results_list, batch_data_samples, rescale=rescale, **kwargs)
        results = []
        for index, (proposals, sample) in enumerate(zip(rpn_results_list, batch_data_samples, strict=True)):
            features = tuple(level[index : index + 1] for level in x)
            results += origin(head, features, [proposals], [sample], rescale=rescale, **kwargs)
        return results


@REWRITERS.register_module()
class BBoxHeadForward(FunctionRewriter):
    """Averages the RoIs' features before the original, whose ``if x.numel() > 0`` would be frozen, and whose
    ``view(n, -1)`` is no shape that ONNX has for n = 0.
    """

    target = 'mmdet.models.roi_heads.bbox_heads.bbox_head.BBoxHead.forward'

    def __call__(self, origin: Callable, head: Any, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        if not head.with_avg_pool:
            return origin(head, x)
        averaged = copy.copy(head)  # the same layers
        averaged.with_avg_pool = False
        return origin(averaged, head.avg_pool(x).flatten(1))


@REWRITERS.register_module()
class BBoxHeadPredict(FunctionRewriter):
    """Hands the original one RoI more, of which the head is sure that it is background, for NMS to drop.

    The original's early return for no proposals would be frozen, and its ``view(n, -1)`` is no shape that ONNX has for
    n = 0.
    """

    target = 'mmdet.models.roi_heads.bbox_heads.bbox_head.BBoxHead._predict_by_feat_single'

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
        if rcnn_test_cfg is not None and isinstance(cls_score, Tensor) and isinstance(bbox_pred, Tensor):
            with tracing_paused():
                background = torch.zeros(1, cls_score.shape[1], dtype=cls_score.dtype, device=cls_score.device)
                background[:, -1] = 1e4
            roi, bbox_pred = (torch.cat([rows, rows.new_zeros(1, python_shape(rows)[1])]) for rows in (roi, bbox_pred))
            cls_score = torch.cat([cls_score, background])
        return origin(head, roi, cls_score, bbox_pred, img_meta, rescale=rescale, rcnn_test_cfg=rcnn_test_cfg)


@REWRITERS.register_module()
class SplitOfOne(FunctionRewriter):
    """A tensor split into one part is that part: no size of the traced image in the graph.

    A parameter has the same sizes for every image, and so have the channels of a sequence (n, length, channels), its
    last axis: they are split by numbers.
    """

    target = 'torch.Tensor.split'

    def __call__(self, origin: Callable, tensor: Tensor, split_size: Any, dim: int = 0) -> tuple[Tensor, ...]:
        if isinstance(split_size, (tuple, list)) and len(split_size) == 1:
            size = python_int(split_size[0])  # a traced number that is compared is told by the tracer as frozen
            if isinstance(size, int) and size == UNKNOWN or size == python_shape(tensor)[dim]:
                return (tensor,)
        channels = tensor.dim() == 3 and dim in (2, -1)
        if isinstance(split_size, Tensor) and (channels or isinstance(tensor, nn.Parameter)):
            split_size = python_int(split_size)
        return origin(tensor, split_size, dim)


@REWRITERS.register_module()
class SingleRoIExtractor(FunctionRewriter):
    """Runs every level on its RoIs, also a level that has none, and puts the rows back in order with one Gather.

    The original skips levels without RoIs of the traced image, and writes rows by index.
    """

    target = 'mmdet.models.roi_heads.roi_extractors.single_level_roi_extractor.SingleRoIExtractor.forward'

    def __call__(
        self,
        origin: Callable,
        extractor: Any,
        feats: tuple[Tensor, ...],
        rois: Tensor,
        roi_scale_factor: float | None = None,
    ) -> Tensor:
        rois = rois.type_as(feats[0])
        if len(feats) == 1:
            return extractor.roi_layers[0](feats[0], rois)
        levels = extractor.map_roi_levels(rois, len(feats))
        if roi_scale_factor is not None:
            rois = extractor.roi_rescale(rois, roi_scale_factor)
        rows = [(levels == level).nonzero().squeeze(1) for level in range(len(feats))]
        parts = [layer(feat, rois[row]) for layer, feat, row in zip(extractor.roi_layers, feats, rows, strict=False)]
        order = torch.cat(rows)
        # as many as there are RoIs, which an exporter does not know of the levels' rows together
        place = torch.zeros_like(levels).scatter(0, order, torch.arange(order.shape[0], device=order.device))
        return torch.cat(parts)[place]


def paste_masks(masks: Tensor, boxes: Tensor, height: Any, width: Any) -> Tensor:
    """Bilinear samples of each mask over the whole image, as mmdet's ``_do_paste_mask`` takes them.

    Bilinear interpolation on a grid of rows and columns is two matrix products, rows x mask x columns, with the
    triangle weights
    ``max(0, 1 - |coordinate - k|)``; mask values outside count as zero, as ``grid_sample`` has it. No slice of
    dynamic size, and
    a small fraction of the work of a GridSample over all pixels.

    Args:
        masks: (n, mh, mw) probabilities.
        boxes: (n, 4) x1 y1 x2 y2 in pixels of the image that is pasted into.
        height: of that image, a Python or traced number.
        width: likewise.

    Returns:
        (n, height, width) probabilities.
    """
    x1, y1, x2, y2 = boxes.unbind(dim=1)
    rows = _paste_weights(y1, y2, height, masks.shape[1])
    columns = _paste_weights(x1, x2, width, masks.shape[2])
    return rows @ masks @ columns.transpose(1, 2)


def _paste_weights(start: Tensor, end: Tensor, size: Any, cells: int) -> Tensor:
    """(n, size, cells): how much each cell of a mask counts for each pixel, along one axis."""
    centers = torch.arange(size, device=start.device).to(start) + 0.5
    position = (centers - start[:, None]) / (end - start)[:, None] * 2 - 1
    # a box without extent: the original samples the middle of its mask there
    position = torch.where(position.abs() == float('inf'), torch.zeros_like(position), position)
    coordinate = ((position + 1) * cells - 1) / 2
    weights = (1 - (coordinate[..., None] - torch.arange(cells, device=start.device).to(start)).abs()).clamp(min=0)
    # the original pastes only within a pixel of the box; it differs from zero outside just for a box without extent
    near = (centers > start[:, None].floor() - 1) & (centers < end[:, None].ceil() + 1)
    return torch.where(near[..., None], weights, torch.zeros_like(weights))


@REWRITERS.register_module()
class FCNMaskPaste(FunctionRewriter):
    """Pastes all masks at once; the original's loop over instances and its dynamic slices are frozen for one image."""

    target = 'mmdet.models.roi_heads.mask_heads.fcn_mask_head.FCNMaskHead._predict_by_feat_single'

    def __call__(
        self,
        origin: Callable,
        head: Any,
        mask_preds: Tensor,
        bboxes: Tensor,
        labels: Tensor,
        img_meta: dict,
        rcnn_test_cfg: Any,
        rescale: bool = False,
        activate_map: bool = False,
    ) -> Tensor:
        if rcnn_test_cfg.mask_thr_binary < 0:
            raise UnsupportedError(
                f'mask_thr_binary is {rcnn_test_cfg.mask_thr_binary}: grey masks, a debugging aid of mmdet, are not'
                ' exported; set it to 0 or more'
            )
        if not activate_map:
            mask_preds = mask_preds.sigmoid()
        scale_factor = bboxes.new_tensor(img_meta['scale_factor'])
        height, width = img_meta['ori_shape'][:2]
        if rescale:  # in place, as the original does: the caller's results hold these boxes
            bboxes /= scale_factor.repeat(2)
        else:
            height = torch.round(height * scale_factor[1]).long()
            width = torch.round(width * scale_factor[0]).long()
        if not head.class_agnostic:
            mask_preds = mask_preds[torch.arange(mask_preds.shape[0], device=labels.device), labels][:, None]
        export = current_export()
        if export is not None and not export.pastes:
            return mask_preds[:, 0]
        return paste_masks(mask_preds[:, 0], bboxes, height, width) >= rcnn_test_cfg.mask_thr_binary
