"""How much boxes overlap."""

from __future__ import annotations

import numpy as np


def iou(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Intersection over union of every box of one side with every one of the other, in double precision.

    Args:
        one: (N, 4) x1 y1 x2 y2; one of negative size is taken for one of no area, which overlaps nothing.
        two: (M, 4).

    Returns:
        (N, M) float64, from 0 to 1.
    """
    one, two = one.astype(np.float64)[:, None], two.astype(np.float64)[None]
    sides = np.minimum(one[..., 2:], two[..., 2:]) - np.maximum(one[..., :2], two[..., :2])
    with np.errstate(all='ignore'):
        inter = sides.clip(0).prod(axis=-1)
        areas = [(boxes[..., 2:] - boxes[..., :2]).clip(0).prod(axis=-1) for boxes in (one, two)]
        return np.nan_to_num(inter / (areas[0] + areas[1] - inter), posinf=0, neginf=0)
