"""CARAFE against the definition, pixel by pixel."""

from __future__ import annotations

import pytest
import torch
from mmcv.ops.carafe import carafe, carafe_naive


def by_definition(features, masks, kernel_size, group_size, scale_factor):
    batch, channels, height, width = features.shape
    output = torch.zeros(batch, channels, height * scale_factor, width * scale_factor)
    reach = kernel_size // 2
    for c in range(channels):
        group = c // (channels // group_size)
        for y in range(height * scale_factor):
            for x in range(width * scale_factor):
                for i in range(kernel_size):
                    for j in range(kernel_size):
                        row, column = y // scale_factor + i - reach, x // scale_factor + j - reach
                        if 0 <= row < height and 0 <= column < width:
                            weight = masks[:, (group * kernel_size + i) * kernel_size + j, y, x]
                            output[:, c, y, x] += features[:, c, row, column] * weight
    return output


@pytest.mark.parametrize('function', [carafe, carafe_naive])
@pytest.mark.parametrize(('kernel_size', 'group_size', 'scale_factor'), [(3, 1, 2), (5, 2, 2), (3, 2, 3), (1, 1, 1)])
def test_definition(function, kernel_size, group_size, scale_factor):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2, 4, 3, 5, generator=generator)
    size = (3 * scale_factor, 5 * scale_factor)
    masks = torch.randn(2, group_size * kernel_size**2, *size, generator=generator)
    answer = function(features, masks, kernel_size, group_size, scale_factor)
    expected = by_definition(features, masks, kernel_size, group_size, scale_factor)
    torch.testing.assert_close(answer, expected, atol=1e-5, rtol=1e-5)
