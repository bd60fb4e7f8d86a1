from __future__ import annotations

import pytest
from mmengine.config import Config
from mmengine.registry import DefaultScope

from mmdeploy_lite.loading import load_config

DETECTOR = 'mmdet::retinanet/retinanet_r18_fpn_1x_coco.py'
DETECTOR_OPTIONS = {
    'model.backbone.base_channels': 4,
    'model.neck.in_channels': [4, 8, 16, 32],
    'model.neck.out_channels': 8,
    'model.bbox_head.in_channels': 8,
    'model.bbox_head.feat_channels': 8,
    'model.bbox_head.stacked_convs': 1,
}
SEGMENTOR = 'mmseg::fcn/fcn_r18-d8_4xb2-80k_cityscapes-512x1024.py'
SEGMENTOR_OPTIONS = {
    'model.backbone.base_channels': 4,
    'model.decode_head.in_channels': 32,
    'model.decode_head.channels': 8,
    'model.auxiliary_head.in_channels': 16,
    'model.auxiliary_head.channels': 8,
}


@pytest.fixture
def detector_cfg() -> Config:
    """A RetinaNet-R18 of a few thousand parameters, 80 classes, with a pretrained backbone in its config."""
    return load_config(DETECTOR, DETECTOR_OPTIONS)


@pytest.fixture
def segmentor_cfg() -> Config:
    """An FCN-R18 of a few thousand parameters, 19 classes, SyncBN, with a pretrained backbone in its config."""
    return load_config(SEGMENTOR, SEGMENTOR_OPTIONS)


@pytest.fixture(autouse=True)
def default_scope():
    """Leave mmengine's default scope as it was."""
    before = dict(DefaultScope._instance_dict)
    yield
    DefaultScope._instance_dict.clear()
    DefaultScope._instance_dict.update(before)


@pytest.fixture
def logged(monkeypatch) -> list[str]:
    """The messages that the loading code logs."""
    messages: list[str] = []

    def record(message, logger=None, level=None):
        messages.append(message)

    for module in ('checkpoint', 'config', 'dataset_meta'):
        monkeypatch.setattr(f'mmdeploy_lite.loading.{module}.print_log', record)
    return messages
