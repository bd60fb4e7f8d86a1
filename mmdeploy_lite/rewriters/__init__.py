"""The built-in rewriters. Importing registers them; which of them run is said by the deploy config."""

from . import (
    mmcv_deform,
    mmcv_ops,
    mmdet_boxes,
    mmdet_dense,
    mmdet_detr,
    mmdet_masks,
    mmdet_panoptic,
    mmdet_roi,
    mmdet_roi_masks,
    mmseg_backbones,
    mmseg_heads,
    mmseg_segmentors,
    mmseg_slide,
    torch_ops,
    traced_values,
    windows,
)

__all__ = [
    'mmcv_deform',
    'mmcv_ops',
    'mmdet_boxes',
    'mmdet_dense',
    'mmdet_detr',
    'mmdet_masks',
    'mmdet_panoptic',
    'mmdet_roi',
    'mmdet_roi_masks',
    'mmseg_backbones',
    'mmseg_heads',
    'mmseg_segmentors',
    'mmseg_slide',
    'torch_ops',
    'traced_values',
    'windows',
]
