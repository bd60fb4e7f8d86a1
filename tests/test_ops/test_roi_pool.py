"""RoIPool against its definition, pixel by pixel."""

from __future__ import annotations

import math

import pytest
import torch
from mmcv.ops import roi_pool
from torch import Tensor

ROIS = torch.tensor(
    [
        [0, 0, 0, 15, 9],
        [1, 3, 2, 9, 9],
        [1, -6, -4, 30, 30],  # over every border
        [0, 30, 30, 40, 40],  # outside
        [0, 5, 5, 4, 9],  # no width, as the last pixel counts
        [0, 5, 5, 5, 5],  # one pixel
    ],
    dtype=torch.float64,
)


def pixel_by_pixel(features: Tensor, rois: Tensor, bins: tuple[int, int], scale: float) -> Tensor:
    height, width = features.shape[2:]
    output = features.new_zeros(len(rois), features.size(1), *bins)
    for n, (batch, x1, y1, x2, y2) in enumerate(rois.tolist()):
        x1, y1, x2, y2 = x1 * scale, y1 * scale, (x2 + 1) * scale, (y2 + 1) * scale
        if x2 <= x1 or y2 <= y1:
            continue
        for i in range(bins[0]):
            for j in range(bins[1]):
                step_y, step_x = (y2 - y1) / bins[0], (x2 - x1) / bins[1]
                rows = range(max(math.floor(i * step_y + y1), 0), min(math.ceil((i + 1) * step_y + y1), height))
                columns = range(max(math.floor(j * step_x + x1), 0), min(math.ceil((j + 1) * step_x + x1), width))
                for c in range(features.size(1)):
                    values = [float(features[int(batch), c, y, x]) for y in rows for x in columns]
                    output[n, c, i, j] = max(values, default=0.0)
    return output


@pytest.mark.parametrize(('bins', 'scale'), [((2, 3), 0.5), ((7, 7), 0.5), ((1, 1), 0.25), ((3, 3), 1.0)])
def test_equals_the_definition(bins: tuple[int, int], scale: float) -> None:
    features = torch.randn(2, 3, 6, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(roi_pool(features, ROIS, bins, scale), pixel_by_pixel(features, ROIS, bins, scale))


def test_gradient() -> None:
    features = torch.randn(2, 2, 6, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(lambda x: roi_pool(x, ROIS, (2, 3), 0.5), features.requires_grad_())


def test_no_regions() -> None:
    assert roi_pool(torch.ones(1, 2, 4, 4), torch.zeros(0, 5), (2, 2), 1.0).shape == (0, 2, 2, 2)
