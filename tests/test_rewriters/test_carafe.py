"""CARAFE's upsampler and the neck that it is made for."""

from __future__ import annotations

import pytest
import torch

REWRITERS = ['Carafe', 'CarafeAdd', 'Squeeze']


@pytest.fixture(scope='module')
def neck():
    from mmdet.registry import MODELS

    torch.manual_seed(0)
    upsample = dict(type='carafe', up_kernel=5, up_group=1, encoder_kernel=3, encoder_dilation=1, compressed_channels=4)
    neck = MODELS.build(dict(type='FPN_CARAFE', in_channels=[3, 4], out_channels=6, num_outs=3, upsample_cfg=upsample))
    for module in neck.upsample_modules:  # or the kernels would be flat
        torch.nn.init.normal_(module.content_encoder.weight, std=0.5)
    return neck.eval().requires_grad_(False)


def features(seed, height, width):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(1, channels, -(-height // stride), -(-width // stride), generator=generator)
        for channels, stride in ((3, 1), (4, 2))
    ]


def test_neck_of_any_size(both, neck):
    graph = both(lambda *maps: neck(maps), features(0, 16, 24), REWRITERS, [[2, 3]] * 2, dynamic=True)
    assert graph.unknown == []
    for seed, size in enumerate([(16, 24), (32, 16), (22, 30)]):  # the last does not divide: maps are cut
        graph.check(*features(seed, *size), atol=1e-5)
