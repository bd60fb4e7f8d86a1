"""Multi-scale deformable attention against one sample at a time, and mmcv's own version for CPUs."""

from __future__ import annotations

import math

import torch
from mmcv.ops import MultiScaleDeformableAttention
from mmcv.ops.multi_scale_deform_attn import MultiScaleDeformableAttnFunction, multi_scale_deformable_attn_pytorch
from torch import Tensor

SHAPES = torch.tensor([[5, 7], [3, 4], [1, 2]])
STARTS = torch.tensor([0, 35, 47])


def inputs(batch: int = 2, queries: int = 4, heads: int = 2, dims: int = 3, points: int = 2) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(batch, 49, heads, dims, dtype=torch.float64, generator=generator)
    # Some samples lie outside.
    location = torch.rand(batch, queries, heads, 3, points, 2, dtype=torch.float64, generator=generator) * 1.6 - 0.3
    attention = torch.rand(batch, queries, heads, 3, points, dtype=torch.float64, generator=generator)
    return value, location, attention


def one_by_one(value: Tensor, location: Tensor, attention: Tensor) -> Tensor:
    batch, queries, heads, levels, points, _ = location.shape
    output = value.new_zeros(batch, queries, heads, value.size(3))
    for b in range(batch):
        for q in range(queries):
            for h in range(heads):
                for level in range(levels):
                    height, width = SHAPES[level].tolist()
                    for p in range(points):
                        x, y = location[b, q, h, level, p].tolist()
                        x, y = x * width - 0.5, y * height - 0.5
                        for row in (math.floor(y), math.floor(y) + 1):
                            for column in (math.floor(x), math.floor(x) + 1):
                                if 0 <= row < height and 0 <= column < width:
                                    weight = (1 - abs(y - row)) * (1 - abs(x - column)) * attention[b, q, h, level, p]
                                    key = int(STARTS[level]) + row * width + column
                                    output[b, q, h] += weight * value[b, key, h]
    return output.flatten(2)


def attend(value: Tensor, location: Tensor, attention: Tensor) -> Tensor:
    return MultiScaleDeformableAttnFunction.apply(value, SHAPES, STARTS, location, attention, 64)


def test_equals_one_sample_at_a_time() -> None:
    value, location, attention = inputs()
    expected = one_by_one(value, location, attention)
    torch.testing.assert_close(attend(value, location, attention), expected, rtol=0, atol=1e-12)
    single = attend(value.float(), location.float(), attention.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=0, atol=1e-5)


def test_equals_the_version_for_cpus() -> None:
    value, location, attention = inputs(queries=30, heads=4, dims=8, points=4)
    expected = multi_scale_deformable_attn_pytorch(value, SHAPES, location, attention)
    torch.testing.assert_close(attend(value, location, attention), expected, rtol=0, atol=1e-10)


def test_levels_in_another_order() -> None:
    """`level_start_index` says where a map starts, not its place in the list of shapes."""
    value, location, attention = inputs()
    moved = torch.cat([value[:, 35:], value[:, :35]], dim=1)
    got = MultiScaleDeformableAttnFunction.apply(moved, SHAPES, torch.tensor([14, 0, 12]), location, attention, 64)
    torch.testing.assert_close(got, attend(value, location, attention), rtol=0, atol=0)


def test_gradients() -> None:
    leaves = [tensor.requires_grad_() for tensor in inputs(batch=1, queries=2)]
    assert torch.autograd.gradcheck(attend, leaves)


def test_module_on_a_cpu() -> None:
    torch.manual_seed(0)
    layer = MultiScaleDeformableAttention(embed_dims=8, num_heads=2, num_levels=3, num_points=2, batch_first=True)
    query, value = torch.randn(1, 5, 8), torch.randn(1, 49, 8)
    points = torch.rand(1, 5, 3, 2)
    got = layer(query, value=value, reference_points=points, spatial_shapes=SHAPES, level_start_index=STARTS)
    assert got.shape == (1, 5, 8) and got.isfinite().all()
