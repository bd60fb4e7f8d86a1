"""Primitives of mmseg's decode heads against mmseg's and mmcv's own."""

from __future__ import annotations

import pytest
import torch
from mmcv.ops import CrissCrossAttention
from mmcv.ops.psa_mask import PSAMask
from mmengine.config import ConfigDict
from mmengine.registry import DefaultScope
from torch import nn


def noise(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class TestPSAMask:
    @pytest.mark.parametrize('psa_type', ['collect', 'distribute'])
    @pytest.mark.parametrize('mask_size', [(5, 7), (15, 15)])  # smaller than the map, and larger
    def test_equals_the_original(self, traced, psa_type, mask_size):
        module = PSAMask(psa_type, mask_size)
        masks = noise(0, 2, mask_size[0] * mask_size[1], 6, 8)
        graph = traced(module, [masks], ['PSAMask'])
        graph.check(masks)
        graph.check(noise(1, *masks.shape))

    def test_of_any_size(self, traced):
        graph = traced(PSAMask('collect', (5, 5)), [noise(0, 1, 25, 6, 8)], ['PSAMask'], [[2, 3]], True)
        assert graph.unknown == []
        graph.check(noise(1, 1, 25, 9, 3))


@pytest.mark.parametrize('dynamic', [False, True])
def test_criss_cross_attention(traced, dynamic):
    torch.manual_seed(0)
    module = CrissCrossAttention(16)
    module.gamma.scale.data.fill_(0.7)
    module.requires_grad_(False)
    graph = traced(module, [noise(0, 1, 16, 5, 7)], ['Diag'], [[2, 3]] if dynamic else [], dynamic)
    assert graph.unknown == []
    graph.check(noise(1, 1, 16, 5, 7), atol=1e-5)
    if dynamic:
        graph.check(noise(2, 1, 16, 8, 3), atol=1e-5)


@pytest.mark.parametrize('size', [1, 3])
def test_generated_kernels(traced, size):
    from mmseg.models.decode_heads.dm_head import DCM

    torch.manual_seed(0)
    module = DCM(size, True, 6, 4, None, None, dict(type='ReLU')).eval()
    module.requires_grad_(False)
    graph = traced(module, [noise(0, 2, 6, 9, 11)], ['GeneratedKernels', 'AdaptiveAvgPool2d'], [[2, 3]], True)
    assert graph.unknown == []
    graph.check(noise(1, 2, 6, 13, 6), atol=1e-5)


class TestPointsOfTest:
    @staticmethod
    def points(logits):
        from mmseg.models.decode_heads.point_head import PointHead, calculate_uncertainty

        cfg = ConfigDict(subdivision_num_points=40)
        indices, coordinates = PointHead.get_points_test(None, logits, calculate_uncertainty, cfg=cfg)
        # of equal rank in any order: what is made of them is scattered back
        order = indices.argsort(dim=1)
        return indices.gather(1, order), coordinates.gather(1, order[..., None].expand(-1, -1, 2))

    def test_fixed(self, traced):
        graph = traced(self.points, [noise(0, 2, 4, 9, 11)], ['PointsOfTest'])
        graph.check(noise(1, 2, 4, 9, 11), atol=1e-6)
        assert graph.unknown == []

    def test_of_any_size(self, traced):
        graph = traced(self.points, [noise(0, 2, 4, 9, 11)], ['PointsOfTest'], [[2, 3]], True)
        assert graph.unknown == []
        graph.check(noise(1, 2, 4, 13, 6), atol=1e-6)
        graph.check(noise(2, 2, 4, 5, 6), atol=1e-6)  # fewer pixels than points


def test_feature_fusion_of_any_size(traced):
    from mmseg.models.decode_heads.dpt_head import FeatureFusionBlock

    torch.manual_seed(0)
    block = FeatureFusionBlock(4, dict(type='ReLU'), None).eval()
    block.requires_grad_(False)
    args = [noise(0, 1, 4, 6, 8), noise(1, 1, 4, 6, 8)]
    graph = traced(block, args, ['FeatureFusion', 'Resize'], [[2, 3], [2, 3]], True)
    assert graph.unknown == []
    graph.check(noise(2, 1, 4, 6, 8), noise(3, 1, 4, 6, 8), atol=1e-5)
    graph.check(noise(2, 1, 4, 5, 7), noise(3, 1, 4, 6, 8), atol=1e-5)


class OfWords(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, x):
        return x @ self.encoder().t()


@pytest.mark.parametrize(('cached', 'scaled'), [(True, False), (False, False), (True, True)])
def test_text_embeddings_are_a_constant(both, cached, scaled):
    from mmseg.models.text_encoder import CLIPTextEncoder

    class Scaled(CLIPTextEncoder):
        """What comes after the original's answer is done once."""

        def forward(self):
            return super().forward() * 2

    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope('mmseg'):
        encoder = (Scaled if scaled else CLIPTextEncoder)(
            vocabulary=['cat', 'dog'],
            templates=['a {}.'],
            embed_dims=16,
            num_layers=1,
            num_heads=2,
            output_dims=8,
            cache_feature=cached,
        ).eval()
    encoder.positional_embedding.data.normal_()
    encoder.text_projection.data.normal_()
    encoder.requires_grad_(False)
    graph = both(OfWords(encoder), [noise(0, 3, 8)], ['CLIPTextEncoder'])
    assert graph.ops().count('MatMul') == 1 and {*graph.ops()} <= {'Constant', 'Identity', 'MatMul', 'Mul', 'Transpose'}
    graph.check(noise(1, 3, 8), atol=1e-4)
