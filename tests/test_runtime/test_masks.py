"""Pasting in NumPy is mmdet's pasting."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mmdeploy_lite.ops  # noqa: F401  (before mmdet)
from mmdeploy_lite.runtime.masks import paste_masks

BOXES = [
    (3.2, 4.7, 30.1, 22.9),
    (0, 0, 40, 30),
    (-5.5, -3.25, 12.5, 9.75),
    (33, 20, 60.5, 44.4),
    (7.1, 7.2, 7.4, 7.3),
    (39.5, 29.5, 39.9, 29.9),
    (5, 5, 5, 9),
]


@pytest.mark.parametrize('threshold', [0.5, 0.3])
@pytest.mark.parametrize('cells', [(28, 28), (14, 7), (1, 1)])
def test_against_mmdet(cells, threshold):
    from mmdet.models.roi_heads.mask_heads.fcn_mask_head import _do_paste_mask

    generator = torch.Generator().manual_seed(0)
    masks = torch.rand(len(BOXES), 1, *cells, generator=generator)
    boxes = torch.tensor(BOXES, dtype=torch.float32)
    wanted = torch.zeros(len(BOXES), 30, 40)
    for index in range(len(BOXES)):  # one at a time, as mmdet does on a CPU
        found, places = _do_paste_mask(masks[index : index + 1], boxes[index : index + 1], 30, 40, skip_empty=True)
        wanted[(index, *places)] = found[0]
    got = paste_masks(masks[:, 0].numpy(), boxes.numpy(), (30, 40), threshold)
    assert got.shape == (len(BOXES), 30, 40) and got.dtype == bool
    clear = (wanted - threshold).abs() > 1e-4
    assert (got == (wanted >= threshold).numpy())[clear.numpy()].all()
    assert got[1].any() and clear.float().mean() > 0.99


def test_nothing_to_paste():
    got = paste_masks(np.zeros((0, 28, 28), np.float32), np.zeros((0, 4), np.float32), (30, 40), 0.5)
    assert got.shape == (0, 30, 40) and got.dtype == bool
    outside = np.float32([[-20, -20, -4, -3], [50, 50, 60, 60]])  # mmdet clips boxes and cannot paste these
    assert not paste_masks(np.ones((2, 28, 28), np.float32), outside, (30, 40), 0.5).any()
