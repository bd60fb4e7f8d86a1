"""PSA masks against their definition, entry by entry."""

from __future__ import annotations

import pytest
import torch
from mmcv.ops.psa_mask import PSAMask
from torch import Tensor


def entry_by_entry(masks: Tensor, psa_type: str, mask_size: tuple[int, int]) -> Tensor:
    number, _, height, width = masks.shape
    (rows, columns), output = mask_size, masks.new_zeros(number, height * width, height, width)
    for y in range(height):
        for x in range(width):
            for row in range(rows):
                for column in range(columns):
                    other_y, other_x = y + row - (rows - 1) // 2, x + column - (columns - 1) // 2
                    if not (0 <= other_y < height and 0 <= other_x < width):
                        continue
                    value = masks[:, row * columns + column, y, x]
                    if psa_type == 'collect':
                        output[:, other_y * width + other_x, y, x] = value
                    else:
                        output[:, y * width + x, other_y, other_x] = value
    return output


@pytest.mark.parametrize('psa_type', ['collect', 'distribute'])
@pytest.mark.parametrize('mask_size', [(3, 5), (7, 11), (1, 1), (4, 2)])  # smaller and larger than the map, and even
def test_equals_the_definition(psa_type: str, mask_size: tuple[int, int]) -> None:
    masks = torch.randn(2, mask_size[0] * mask_size[1], 4, 6, generator=torch.Generator().manual_seed(0))
    assert torch.equal(PSAMask(psa_type, mask_size)(masks), entry_by_entry(masks, psa_type, mask_size))


@pytest.mark.parametrize('psa_type', ['collect', 'distribute'])
def test_gradient(psa_type: str) -> None:
    masks = torch.randn(2, 15, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(PSAMask(psa_type, (3, 5)), masks.requires_grad_())
