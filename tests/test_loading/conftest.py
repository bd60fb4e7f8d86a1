from __future__ import annotations

import pytest
from mmengine.config import Config

from mmdeploy_lite.loading import load_config
from mmdeploy_lite.testing.tiny import narrow_fcn, narrow_retinanet

DETECTOR = 'mmdet::retinanet/retinanet_r18_fpn_1x_coco.py'
DETECTOR_OPTIONS = narrow_retinanet(4)
SEGMENTOR = 'mmseg::fcn/fcn_r18-d8_4xb2-80k_cityscapes-512x1024.py'
SEGMENTOR_OPTIONS = narrow_fcn(4)


@pytest.fixture
def detector_cfg() -> Config:
    """A RetinaNet-R18 of a few thousand parameters, 80 classes, with a pretrained backbone in its config."""
    return load_config(DETECTOR, DETECTOR_OPTIONS)


@pytest.fixture
def segmentor_cfg() -> Config:
    """An FCN-R18 of a few thousand parameters, 19 classes, SyncBN, with a pretrained backbone in its config."""
    return load_config(SEGMENTOR, SEGMENTOR_OPTIONS)


@pytest.fixture
def logged(monkeypatch) -> list[str]:
    """The messages that the loading code logs."""
    messages: list[str] = []

    def record(message, logger=None, level=None):
        messages.append(message)

    for module in ('checkpoint', 'config', 'dataset_meta'):
        monkeypatch.setattr(f'mmdeploy_lite.loading.{module}.print_log', record)
    return messages
