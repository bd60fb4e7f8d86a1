"""Patches and windows of the transformer backbones, against the libraries' own."""

from __future__ import annotations

import importlib

import pytest
import torch


def noise(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize('padding', ['corner', 'same'])
@pytest.mark.parametrize(('kernel', 'stride', 'dilation'), [(4, 4, 1), ((3, 5), (2, 3), (2, 1)), (1, 2, 1)])
@pytest.mark.parametrize(
    'where', ['mmseg.models.utils.embed', 'mmdet.models.layers.transformer.utils', 'mmcv.cnn.bricks.transformer']
)
def test_adaptive_padding(traced, where, padding, kernel, stride, dilation):
    module = importlib.import_module(where).AdaptivePadding(kernel, stride, dilation, padding)
    graph = traced(module, [noise(0, 1, 2, 8, 12)], ['AdaptivePadding'], [[2, 3]], True)
    assert graph.unknown == []
    for size in ((8, 12), (9, 10), (7, 13), (5, 3)):
        graph.check(noise(1, 1, 2, *size))


@pytest.mark.parametrize('dynamic', [False, True])
@pytest.mark.parametrize('shift', [0, 2])
@pytest.mark.parametrize('where', ['mmseg.models.backbones.swin', 'mmdet.models.backbones.swin'])
def test_shifted_windows(traced, where, shift, dynamic):
    torch.manual_seed(0)
    module = importlib.import_module(where).ShiftWindowMSA(8, 2, window_size=4, shift_size=shift)
    module.w_msa.relative_position_bias_table.data.normal_()
    module.eval()
    module.requires_grad_(False)

    def function(x):
        return module(x.flatten(2).transpose(1, 2), tuple(x.shape[-2:]))

    traced_at = (9, 8)
    graph = traced(function, [noise(0, 2, 8, *traced_at)], ['ShiftWindowMSA'], [[2, 3]] if dynamic else [], dynamic)
    assert graph.unknown == []
    for size in ((9, 8), (8, 12), (3, 4), (4, 13)) if dynamic else (traced_at,):
        graph.check(noise(1, 2, 8, *size), atol=1e-5)


def test_shifted_windows_by_torch_export(symbolic):
    from mmdet.models.backbones.swin import ShiftWindowMSA

    msa = ShiftWindowMSA(8, 2, window_size=4, shift_size=2).eval().requires_grad_(False)

    def function(x):
        return msa(x.flatten(2).transpose(1, 2), x.shape[2:])

    graph = symbolic(function, [noise(0, 2, 8, 9, 10)], ['ShiftWindowMSA'], [[2, 3]], dynamic=True)
    for size in ((9, 10), (8, 12), (3, 4)):
        graph.check(noise(1, 2, 8, *size), atol=1e-5)
