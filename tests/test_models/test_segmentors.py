"""Segmentors in whole mode, of dynamic size; exported on a landscape image and on a portrait one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmdeploy_lite.testing.exporting import export, remember_references
from mmdeploy_lite.testing.models import zoo_model

from .conftest import check

NARROW = {'model.decode_head.channels': 64}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    'FCN': ('mmseg::fcn/fcn_r18-d8_4xb2-80k_cityscapes-512x1024.py', NARROW),
    'PSPNet': ('mmseg::pspnet/pspnet_r18-d8_4xb2-80k_cityscapes-512x1024.py', NARROW),
    'UPerNet': ('mmseg::upernet/upernet_r18_4xb4-80k_ade20k-512x512.py', NARROW),
    'DeepLabV3+': ('mmseg::deeplabv3plus/deeplabv3plus_r18-d8_4xb2-80k_cityscapes-512x1024.py', NARROW),
    'MaskFormer': (
        'mmseg::maskformer/maskformer_r50-d32_8xb2-160k_ade20k-512x512.py',
        {
            'model.backbone.depth': 18,
            'model.decode_head.in_channels': [64, 128, 256, 512],
            'model.decode_head.transformer_decoder.num_layers': 2,
        },
    ),
    'SegFormer-b0': ('mmseg::segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py', {}),
}


@pytest.mark.parametrize('name', CONFIGS)
def test_segmentor(name: str, images: dict[str, np.ndarray], tmp_path: Path) -> None:
    config, options = CONFIGS[name]
    model = zoo_model(config, options)
    samples = model.samples(images)
    assert len({sample.shape for sample in samples}) == 3 and all(min(sample.shape) >= 256 for sample in samples)
    remember_references(model.task)
    landscape, portrait, _, nothing = samples
    for traced in ([landscape, nothing], [portrait, portrait]):
        verification = check(export(model.task, traced, tmp_path).verify(samples))
    for sample, (reference, _) in zip(samples, verification.answers, strict=True):
        assert reference.seg_map.shape == sample.image.shape[:2]
        assert len(np.unique(reference.seg_map)) >= (1 if sample is nothing else 10)
