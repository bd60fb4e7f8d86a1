"""Instance masks and panoptic maps of whole models, small."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmdeploy_lite.testing.exporting import export
from mmdeploy_lite.testing.images import empty, scene
from mmdeploy_lite.testing.models import TestModel, find_busy, zoo_model
from mmdeploy_lite.testing.panoptic import find_segments

from .conftest import check

R18 = {'model.backbone.depth': 18, 'model.neck.in_channels': [64, 128, 256, 512]}
FEW = {'model.test_cfg.rpn.nms_pre': 50, 'model.test_cfg.rcnn.max_per_img': 20}
QUERIES = {'model.backbone.depth': 18, 'model.panoptic_head.in_channels': [64, 128, 256, 512]}


def build(config: str, options: dict[str, Any], scale: tuple[int, int], **task_options: Any) -> tuple[TestModel, list]:
    model = zoo_model(config, options, scale=scale, **task_options)
    width, height = scale
    images = {
        'landscape': scene(11, height + 30, width + 40),
        'portrait': scene(12, width + 40, height + 30),
        'wide': scene(13, height, width + 40),
        'empty': empty(height + 30, width + 40),
    }
    return model, model.samples(images)


@pytest.mark.parametrize(
    ('name', 'config', 'options', 'batch_size'),
    [
        ('RTMDet-Ins', 'mmdet::rtmdet/rtmdet-ins_tiny_8xb32-300e_coco.py', {}, 2),
        ('CondInst', 'mmdet::condinst/condinst_r50_fpn_ms-poly-90k_coco_instance.py', R18, 1),
        ('YOLACT', 'mmdet::yolact/yolact_r50_1xb8-55e_coco.py', R18, 1),
        ('Mask Scoring', 'mmdet::ms_rcnn/ms-rcnn_r50_fpn_1x_coco.py', {**R18, **FEW}, 2),
    ],
)
def test_instances(
    name: str,
    config: str,
    options: dict[str, Any],
    batch_size: int,
    tmp_path: Path,
    needs_torch: Callable[[int, int, str], None],
) -> None:
    if name == 'RTMDet-Ins':
        needs_torch(2, 3, 'the size of its masks')
    scale = (128, 128) if name in ('RTMDet-Ins', 'YOLACT') else (160, 128)
    model, samples = build(config, options, scale, batch_size=batch_size)
    find_busy(model, samples[:3], samples[3], more_than=5, distinct=5)
    same = [sample for sample in samples if model.task.fit_together(samples[0], sample)]
    found = check(export(model.task, [samples[0], *same[-1:] * (2 * batch_size - 1)], tmp_path).verify(samples))
    masks = {sample.name: answer.masks for sample, (answer, _) in zip(samples, found.answers, strict=True)}
    assert len(masks['empty']) == 0 and len(masks['landscape']) > 0
    assert any(mask.any() and not mask.all() for mask in masks.values())
    for sample in samples[:3]:
        assert masks[sample.name].shape[1:] == sample.image.shape[:2]


@pytest.mark.parametrize(
    ('config', 'options', 'scale'),
    [
        ('mmdet::panoptic_fpn/panoptic-fpn_r50_fpn_1x_coco.py', {**R18, 'model.test_cfg.rpn.nms_pre': 200}, (160, 128)),
        ('mmdet::maskformer/maskformer_r50_ms-16xb1-75e_coco.py', QUERIES, (160, 128)),
    ],
)
def test_panoptic(config: str, options: dict[str, Any], scale: tuple[int, int], tmp_path: Path) -> None:
    model, samples = build(config, options, scale)
    find_segments(model, samples[:3])
    found = check(export(model.task, [samples[0], samples[3]], tmp_path).verify(samples))
    segments = set()
    for sample, (reference, answer) in zip(samples, found.answers, strict=True):
        assert reference.seg_map.shape == answer.seg_map.shape == sample.image.shape[:2]
        segments |= set(np.unique(reference.seg_map))
    assert len(segments) >= 5 and max(segments) >= 1000
