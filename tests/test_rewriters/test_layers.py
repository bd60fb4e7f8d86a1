"""Layers of mmcv.ops, and linspace, against the originals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F


def attention(shapes_of):
    def function(value, locations, weights, *maps):
        from mmcv.ops.multi_scale_deform_attn import multi_scale_deformable_attn_pytorch

        shapes = torch.stack([torch._shape_as_tensor(item) for item in maps])
        shapes = shapes if torch.jit.is_tracing() or shapes_of is None else shapes_of(shapes)
        return multi_scale_deformable_attn_pytorch(value, shapes, locations, weights)

    return function


def attention_args(seed, sizes, queries=5, heads=2, channels=4, points=3):
    generator = torch.Generator().manual_seed(seed)
    count = sum(height * width for height, width in sizes)
    value = torch.randn(2, count, heads, channels, generator=generator)
    locations = torch.rand(2, queries, heads, len(sizes), points, 2, generator=generator) * 1.2 - 0.1
    weights = torch.rand(2, queries, heads, len(sizes), points, generator=generator)
    return value, locations, weights, *(torch.zeros(size) for size in sizes)


def test_attention_over_levels_of_any_size(traced):
    axes = [[1], [], [], [0, 1], [0, 1]]
    graph = traced(
        attention(None), attention_args(0, [(6, 8), (3, 4)]), ['MultiScaleDeformableAttention', 'Squeeze'], axes
    )
    assert graph.unknown == []
    for seed, sizes in ((1, [(6, 8), (3, 4)]), (2, [(5, 9), (1, 2)]), (3, [(12, 2), (7, 7)])):
        graph.check(*attention_args(seed, sizes), atol=1e-5)


def linspace(x):
    rows, columns = x.shape
    rows, columns = torch._shape_as_tensor(x) if torch.jit.is_tracing() else (rows, columns)
    return torch.linspace(0.5, rows - 0.5, rows), torch.linspace(0, columns - 1, columns), torch.linspace(0, 1, columns)


def test_linspace_of_traced_sizes(traced):
    graph = traced(linspace, [torch.zeros(4, 7)], ['Linspace'], [[0, 1]])
    for size in ((4, 7), (1, 2), (9, 1), (50, 33)):
        graph.check(torch.zeros(size))


@pytest.mark.parametrize('mode', ['top', 'bottom', 'left', 'right'])
@pytest.mark.parametrize('dynamic', [False, True])
def test_corner_pool(traced, mode, dynamic):
    from mmcv.ops import CornerPool

    pool = CornerPool(mode)
    axes = [[2, 3]] if dynamic else []
    graph = traced(pool, [torch.randn(1, 2, 5, 8)], ['CornerPool'], axes, dynamic=dynamic)
    for size in ((5, 8), (1, 1), (9, 6), (7, 33)) if dynamic else ((5, 8),):
        graph.check(-torch.rand(1, 2, *size) * 9)


def test_masked_convolution(traced):
    from mmcv.ops import MaskedConv2d

    conv = MaskedConv2d(3, 4, 3, padding=1).requires_grad_(False)

    def function(x, mask):
        return conv(x, mask[0].sigmoid() >= 0.5)

    graph = traced(function, [torch.randn(1, 3, 5, 6), torch.randn(1, 1, 5, 6)], ['MaskedConv2d'], [[2, 3], [2, 3]])
    assert graph.unknown == [] and 'NonZero' not in graph.ops()
    for size in ((5, 6), (8, 3)):
        graph.check(torch.randn(1, 3, *size), torch.randn(1, 1, *size), atol=1e-5)
    graph.check(torch.randn(1, 3, 5, 6), torch.full((1, 1, 5, 6), -1.0))  # nowhere


def test_masked_convolution_is_the_convolution_where_the_mask_is():
    from mmcv.ops import MaskedConv2d

    conv = MaskedConv2d(3, 4, 3, padding=1).requires_grad_(False)
    x, mask = torch.randn(1, 3, 5, 6), torch.rand(1, 5, 6) > 0.5
    expected = F.conv2d(x, conv.weight, conv.bias, padding=1) * mask
    torch.testing.assert_close(conv(x, mask), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize('affine', [True, False])
def test_group_norm_of_any_number_of_maps(both, affine):
    norm = torch.nn.GroupNorm(2, 6, affine=affine).requires_grad_(False)
    if affine:
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    graph = both(norm, [torch.randn(3, 6, 4, 5)], ['GroupNorm'], [[0, 2, 3]])
    assert graph.unknown == []
    for size in ((3, 6, 4, 5), (1, 6, 7, 2)):
        graph.check(torch.randn(size) * 3 + 1, atol=1e-5)
    assert graph.run(torch.zeros(0, 6, 4, 5))[0].shape == (0, 6, 4, 5)


def test_group_norm_is_as_exact_as_pytorch(both):
    """A large group is where a sum in plain order is not."""
    norm = torch.nn.GroupNorm(2, 16).requires_grad_(False)
    image = torch.randn(1, 16, 200, 200, generator=torch.Generator().manual_seed(0))
    graph = both(norm, [image], ['GroupNorm'])
    exact = norm.double()(image.double()).numpy()
    of_pytorch, of_file = (np.abs(answer - exact).mean() for answer in (norm.float()(image).numpy(), *graph.run(image)))
    assert of_file < 3 * of_pytorch


@pytest.mark.parametrize(('kernel', 'stride', 'dilation'), [(3, 2, 1), (5, (2, 1), 1), (3, 1, 2), (1, 2, 1), (2, 3, 1)])
@pytest.mark.parametrize('dynamic', [False, True])
def test_adaptive_padding(traced, kernel, stride, dilation, dynamic):
    from mmcv.cnn.bricks.conv2d_adaptive_padding import Conv2dAdaptivePadding

    conv = Conv2dAdaptivePadding(2, 3, kernel, stride, dilation=dilation).requires_grad_(False)
    axes = [[2, 3]] if dynamic else []
    graph = traced(conv, [torch.randn(1, 2, 6, 9)], ['Conv2dAdaptivePadding'], axes, dynamic=dynamic)
    assert graph.unknown == []
    for size in ((6, 9), (7, 8), (5, 5), (12, 1)) if dynamic else ((6, 9),):
        graph.check(torch.randn(1, 2, *size), atol=1e-5)


def test_merge_cells_resize_to_other_levels(traced):
    from mmcv.ops.merge_cells import SumCell

    cell = SumCell(2, 2, with_out_conv=False)

    def function(x, other):
        return cell._resize(x, other.shape[-2:])

    for first, others in (
        ((8, 12), [((8, 12), (2, 3)), ((9, 12), (3, 3)), ((5, 7), (2, 2)), ((1, 9), (1, 3))]),  # larger than the other
        ((2, 3), [((2, 3), (8, 12)), ((3, 2), (5, 4))]),
        ((4, 4), [((4, 4), (4, 4)), ((7, 3), (7, 3))]),
    ):
        start = [torch.randn(1, 2, *first), torch.zeros(1, 2, *others[0][1])]
        graph = traced(function, start, ['MergeCellResize'], [[2, 3], [2, 3]])
        assert graph.unknown == []
        for here, there in others:
            graph.check(torch.randn(1, 2, *here) - 1, torch.zeros(1, 2, *there))
