"""The built-in rewriters. Importing registers them; which of them run is said by the deploy config."""

from . import (
    mmcv_deform,
    mmcv_ops,
    mmdet_boxes,
    mmdet_dense,
    mmdet_detr,
    mmdet_roi,
    mmseg_backbones,
    mmseg_heads,
    mmseg_segmentors,
    mmseg_slide,
    torch_ops,
    windows,
)

__all__ = [
    'mmcv_deform',
    'mmcv_ops',
    'mmdet_boxes',
    'mmdet_dense',
    'mmdet_detr',
    'mmdet_roi',
    'mmseg_backbones',
    'mmseg_heads',
    'mmseg_segmentors',
    'mmseg_slide',
    'torch_ops',
    'windows',
]
