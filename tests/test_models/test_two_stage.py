"""Two-stage detectors; ``nms_pre=50`` leaves a number of proposals that differs from image to image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmdeploy_lite.testing.models import zoo_model

from .conftest import check_detector

PROPOSALS = {'model.test_cfg.rpn.nms_pre': 50}
R18 = {'model.backbone.depth': 18, 'model.neck.in_channels': [64, 128, 256, 512]}
NARROW = {'model.roi_head.bbox_head.fc_out_channels': 128}  # most of the weights are there
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    'Faster R-CNN-R50': ('mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py', NARROW),
    'Mask R-CNN': (
        'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py',
        {**R18, **NARROW, 'model.test_cfg.rcnn.max_per_img': 30},
    ),
    'Cascade R-CNN': ('mmdet::cascade_rcnn/cascade-rcnn_r50_fpn_1x_coco.py', R18),
}


@pytest.mark.parametrize('name', CONFIGS)
def test_two_stage_detector(name: str, images: dict[str, np.ndarray], tmp_path: Path) -> None:
    config, options = CONFIGS[name]
    verifications = check_detector(zoo_model(config, {**PROPOSALS, **options}), images, tmp_path)
    masks = [answer.masks for verification in verifications for _, answer in verification.answers]
    assert all((mask is not None) == name.startswith('Mask') for mask in masks)
    if name.startswith('Mask'):
        assert any(mask.any() and not mask.all() for mask in masks)
