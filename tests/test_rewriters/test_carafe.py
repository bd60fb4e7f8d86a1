"""CARAFE's upsampler and the neck that it is made for."""

from __future__ import annotations

import torch

REWRITERS = ['Carafe', 'CarafeAdd', 'Squeeze']


LEVELS = ((3, 1), (4, 2), (5, 4))
"""Channels and stride."""


def make_neck(levels, kernel):
    from mmdet.registry import MODELS

    torch.manual_seed(0)
    upsample = dict(type='carafe', up_group=1, encoder_kernel=3, encoder_dilation=1, compressed_channels=4)
    channels = [channels for channels, _ in levels]
    neck = MODELS.build(
        dict(
            type='FPN_CARAFE',
            in_channels=channels,
            out_channels=6,
            num_outs=len(levels) + 1,
            upsample_cfg=dict(upsample, up_kernel=kernel),
        )
    )
    for module in neck.upsample_modules:  # or the kernels would be flat
        torch.nn.init.normal_(module.content_encoder.weight, std=0.5)
    return neck.eval().requires_grad_(False)


def features(levels, seed, height, width):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(1, channels, -(-height // stride), -(-width // stride), generator=generator)
        for channels, stride in levels
    ]


def of_any_size(exporter, levels, kernel):
    neck = make_neck(levels, kernel)
    sizes = [[2, 3]] * len(levels)
    graph = exporter(lambda *maps: neck(maps), features(levels, 0, 16, 24), REWRITERS, sizes, dynamic=True)
    assert graph.unknown == []
    for seed, size in enumerate([(16, 24), (32, 16), (22, 30)]):  # the last does not divide: maps are cut
        graph.check(*features(levels, seed, *size), atol=2e-5)  # values to 6, rounded at each of the sums


def test_neck_of_any_size(traced):
    of_any_size(traced, LEVELS, kernel=5)


def test_neck_of_any_size_by_torch_export(symbolic):
    """Two levels and 9 places instead of three and 25, whose symbols took it 49 s."""
    of_any_size(symbolic, LEVELS[:2], kernel=3)
