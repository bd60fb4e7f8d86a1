"""Detectors that need primitives of their own, as small as they get; each file compared at two sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmdeploy_lite.testing.exporting import export, remember_references
from mmdeploy_lite.testing.images import empty, faint, scene
from mmdeploy_lite.testing.models import zoo_model

from .conftest import check

R18 = {'model.backbone.depth': 18, 'model.neck.in_channels': [64, 128, 256, 512]}
FEW = {'model.test_cfg.rpn.nms_pre': 100, 'model.test_cfg.rcnn.max_per_img': 30}
HOURGLASS = {
    'model.backbone.stage_channels': [16, 16, 24, 24, 24, 32],
    'model.backbone.stage_blocks': [1] * 6,
    'model.backbone.num_stacks': 1,
    'model.backbone.feat_channel': 16,
    'model.bbox_head.in_channels': 16,
    'model.bbox_head.num_feat_levels': 1,
    'model.bbox_head.num_classes': 3,
    'model.test_cfg.corner_topk': 40,
}
DETR = {
    'model.backbone.depth': 18,
    'model.num_queries': 40,
    'model.encoder.num_layers': 1,
    'model.decoder.num_layers': 2,
    'model.bbox_head.num_classes': 5,
    'model.test_cfg.max_per_img': 30,
}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    'CornerNet': ('mmdet::cornernet/cornernet_hourglass104_10xb5-crop511-210e-mstest_coco.py', HOURGLASS),
    'CenterNet': ('mmdet::centernet/centernet_r18-dcnv2_8xb16-crop512-140e_coco.py', {}),
    'DDQ': (
        'mmdet::ddq/ddq-detr-4scale_r50_8xb2-12e_coco.py',
        {**DETR, 'model.neck.in_channels': [128, 256, 512]},
    ),
    'Deformable DETR, two stages': (
        'mmdet::deformable_detr/deformable-detr-refine-twostage_r50_16xb2-50e_coco.py',
        {**DETR, 'model.neck.in_channels': [128, 256, 512]},
    ),
    'GA-Faster R-CNN': ('mmdet::guided_anchoring/ga-faster-rcnn_r50_fpn_1x_coco.py', {**R18, **FEW}),
    'Cascade RPN': (
        'mmdet::cascade_rpn/cascade-rpn_faster-rcnn_r50-caffe_fpn_1x_coco.py',
        {**R18, 'model.test_cfg.rpn.max_per_img': 50, 'model.test_cfg.rcnn.max_per_img': 30},
    ),
    'Faster R-CNN C4': (
        'mmdet::faster_rcnn/faster-rcnn_r50-caffe_c4-1x_coco.py',
        {'model.test_cfg.rpn.max_per_img': 30, 'model.test_cfg.rcnn.max_per_img': 30},
    ),
    'TOOD': ('mmdet::tood/tood_r50_fpn_1x_coco.py', R18),
    'CrowdDet': (
        'mmdet::crowddet/crowddet-rcnn_r50_fpn_8xb2-30e_crowdhuman.py',
        {**R18, 'model.test_cfg.rpn.max_per_img': 60, 'model.test_cfg.rcnn.max_per_img': 40},
    ),
    'SSD300': ('mmdet::ssd/ssd300_coco.py', {'model.bbox_head.num_classes': 5}),
}


@pytest.mark.parametrize('name', CONFIGS)
def test_family(name: str, tmp_path: Path, needs_torch: Callable[[int, int, str], None]) -> None:
    if name == 'SSD300':
        needs_torch(2, 2, 'exporting pools of any size that round up')
    config, options = CONFIGS[name]
    model = zoo_model(config, options, scale=(300, 300) if name == 'SSD300' else (160, 128))
    # SSD has no image without detections: where nothing differs its scores are equal, and which NMS keeps is chance
    nothing = (faint if name == 'SSD300' else empty)(128, 160)
    samples = model.samples({'first': scene(11, 128, 160), 'other size': scene(12, 200, 140), 'nothing': nothing})
    remember_references(model.task)
    verification = check(export(model.task, [samples[0], samples[2]], tmp_path).verify(samples))
    counts = [len(reference) for reference, _ in verification.answers]
    assert max(counts) >= 10, counts
