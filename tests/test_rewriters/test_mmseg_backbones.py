"""Sizes that decide about padding and resizing in mmseg's backbones, against mmseg's own."""

from __future__ import annotations

import pytest
import torch


def noise(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_position_embedding_of_any_size(both):
    from mmseg.models.backbones import VisionTransformer

    torch.manual_seed(0)
    backbone = VisionTransformer(
        img_size=(32, 48), patch_size=8, embed_dims=8, num_layers=1, num_heads=2, interpolate_mode='bicubic'
    )
    backbone.eval()
    backbone.pos_embed.data.normal_()
    backbone.requires_grad_(False)
    graph = both(
        lambda x: backbone(x)[0],
        [noise(0, 1, 3, 32, 48)],
        ['AdaptivePadding', 'PositionEmbedding', 'Resize'],
        [[2, 3]],
        True,
    )
    assert graph.unknown == []
    for size in ((32, 48), (48, 32), (30, 50)):
        graph.check(noise(1, 1, 3, *size), atol=1e-5)


@pytest.mark.parametrize('factor', [2, 0.5, 1.3])
@pytest.mark.parametrize('align_corners', [False, True])
def test_upsample(both, factor, align_corners):
    from mmseg.models.utils import Upsample

    module = Upsample(scale_factor=factor, mode='bilinear', align_corners=align_corners)
    graph = both(module, [noise(0, 1, 2, 8, 12)], ['Upsample', 'Resize'], [[2, 3]], True)
    assert graph.unknown == []
    for size in ((8, 12), (10, 17)):
        graph.check(noise(1, 1, 2, *size), atol=1e-5)
