"""One-stage detectors and DETR."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmdeploy_lite.testing.models import zoo_model

from .conftest import check_detector

R18 = {'model.backbone.depth': 18, 'model.neck.in_channels': [64, 128, 256, 512]}
CONFIGS: dict[str, tuple[str, dict[str, Any], tuple[int, int]]] = {
    'RetinaNet-R18': ('mmdet::retinanet/retinanet_r18_fpn_1x_coco.py', {}, (384, 256)),
    'FCOS': ('mmdet::fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py', R18, (384, 256)),
    'ATSS': ('mmdet::atss/atss_r50_fpn_1x_coco.py', R18, (384, 256)),
    'YOLOX-tiny': ('mmdet::yolox/yolox_tiny_8xb8-300e_coco.py', {}, (320, 320)),
    'RTMDet-tiny': ('mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py', {}, (320, 320)),
}


@pytest.mark.parametrize('name', CONFIGS)
def test_one_stage_detector(name: str, images: dict[str, np.ndarray], tmp_path: Path) -> None:
    config, options, scale = CONFIGS[name]
    check_detector(zoo_model(config, options, scale=scale), images, tmp_path)


def test_detr(images: dict[str, np.ndarray], tmp_path: Path) -> None:
    """It has neither a threshold nor NMS: as many answers for every image."""
    model = zoo_model('mmdet::detr/detr_r18_8xb2-500e_coco.py')
    check_detector(model, images, tmp_path, has_threshold=False)
