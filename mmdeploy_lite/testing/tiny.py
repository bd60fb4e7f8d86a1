"""Models of the libraries' configs cut down to a few channels: quick, with every part of the large ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .models import TestModel, zoo_model

SCALE = (160, 128)
"""(longer, shorter) side in pixels that images are resized to at most."""


def narrow_pyramid(base: int) -> dict[str, Any]:
    """Options for a detector with a ResNet-18 and an FPN of ``2 * base`` channels."""
    return {
        'model.backbone.base_channels': base,
        'model.neck.in_channels': [base, 2 * base, 4 * base, 8 * base],
        'model.neck.out_channels': 2 * base,
    }


def narrow_retinanet(base: int) -> dict[str, Any]:
    """Options for RetinaNet-R18, whose ResNet begins with ``base`` channels."""
    return {
        **narrow_pyramid(base),
        'model.bbox_head.in_channels': 2 * base,
        'model.bbox_head.feat_channels': 2 * base,
        'model.bbox_head.stacked_convs': 1,
    }


def narrow_fcn(base: int) -> dict[str, Any]:
    """Options for FCN-R18 and its like, whose ResNet begins with ``base`` channels."""
    return {
        'model.backbone.base_channels': base,
        'model.decode_head.in_channels': 8 * base,
        'model.decode_head.channels': 2 * base,
        'model.auxiliary_head.in_channels': 4 * base,
        'model.auxiliary_head.channels': 8,
    }


_BACKBONE = {'model.backbone.depth': 18, **narrow_pyramid(8)}
_TWO_STAGE = {
    **_BACKBONE,
    'model.rpn_head.in_channels': 16,
    'model.rpn_head.feat_channels': 16,
    'model.roi_head.bbox_roi_extractor.out_channels': 16,
    'model.roi_head.bbox_head.in_channels': 16,
    'model.roi_head.bbox_head.fc_out_channels': 32,
    'model.roi_head.bbox_head.num_classes': 5,
    'model.test_cfg.rpn.nms_pre': 50,
}
TINY: dict[str, tuple[str, dict[str, Any]]] = {
    'RetinaNet': (
        'mmdet::retinanet/retinanet_r18_fpn_1x_coco.py',
        {**narrow_retinanet(8), 'model.backbone.depth': 18, 'model.bbox_head.num_classes': 5},
    ),
    'YOLOX': (
        'mmdet::yolox/yolox_tiny_8xb8-300e_coco.py',
        {
            'model.backbone.widen_factor': 0.125,
            'model.neck.in_channels': [32, 64, 128],
            'model.neck.out_channels': 16,
            'model.bbox_head.in_channels': 16,
            'model.bbox_head.feat_channels': 16,
            'model.bbox_head.num_classes': 5,
        },
    ),
    'RTMDet': (
        'mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py',
        {
            'model.backbone.widen_factor': 0.125,
            'model.neck.in_channels': [32, 64, 128],
            'model.neck.out_channels': 16,
            'model.bbox_head.in_channels': 16,
            'model.bbox_head.feat_channels': 16,
            'model.bbox_head.num_classes': 20,
        },
    ),
    'Faster R-CNN': ('mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py', _TWO_STAGE),
    'Mask R-CNN': (
        'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py',
        {
            **_TWO_STAGE,
            'model.roi_head.mask_roi_extractor.out_channels': 16,
            'model.roi_head.mask_head.in_channels': 16,
            'model.roi_head.mask_head.conv_out_channels': 16,
            'model.roi_head.mask_head.num_classes': 5,
            'model.test_cfg.rcnn.max_per_img': 30,
        },
    ),
    'FCN': (
        'mmseg::fcn/fcn_r18-d8_4xb2-80k_cityscapes-512x1024.py',
        narrow_fcn(8),
    ),
    'PSPNet': (
        'mmseg::pspnet/pspnet_r18-d8_4xb2-80k_cityscapes-512x1024.py',
        narrow_fcn(8),
    ),
    'SegFormer': (
        'mmseg::segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py',
        {
            'model.backbone.embed_dims': 8,
            'model.backbone.num_layers': [1, 1, 1, 1],
            'model.decode_head.in_channels': [8, 16, 40, 64],
            'model.decode_head.channels': 16,
            'model.decode_head.num_classes': 19,
        },
    ),
}


def tiny(name: str, options: Mapping[str, Any] | None = None, **kwargs: Any) -> TestModel:
    """A model of :data:`TINY` with ``options`` over its config."""
    config, cut = TINY[name]
    return zoo_model(config, {**cut, **(options or {})}, scale=kwargs.pop('scale', SCALE), **kwargs)
