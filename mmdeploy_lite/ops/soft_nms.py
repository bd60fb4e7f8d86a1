"""Soft non-maximum suppression: scores of overlapping boxes decay instead of the boxes being dropped.

Bodla et al., Soft-NMS - Improving Object Detection With One Line of Code, https://arxiv.org/abs/1704.04503.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .nms import as_array, pairwise_iou

__all__ = ['softnms']

NAIVE, LINEAR, GAUSSIAN = range(3)


def softnms(
    boxes: Tensor,
    scores: Tensor,
    dets: Tensor,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    method: int,
    offset: int,
) -> Tensor:
    """Repeatedly take the box of the highest score and decay the scores of the boxes left by their IoU with it.

    The semantics are those of mmcv's CPU kernel, its order among equal scores included: the box taken changes places
    with the first one left, and a box whose score falls below ``min_score`` is replaced by the last one. The box taken
    is not itself compared with ``min_score``. An IoU equal to the threshold decays, other than in :func:`nms`.

    Args:
        boxes (Tensor): (N, 4), x1 y1 x2 y2 in pixels.
        scores (Tensor): (N,).
        dets (Tensor): (N, 5), its first K rows are written: x1 y1 x2 y2 and the decayed score, in the order taken.
        iou_threshold (float): From which IoU on scores decay; not used by method 2.
        sigma (float): Of method 2.
        min_score (float): Boxes whose score is or falls below it are dropped.
        method (int): 0 sets the score to zero, 1 multiplies it by ``1 - iou``, 2 by ``exp(-iou ** 2 / sigma)``.
        offset (int): 0, or 1 where x2 and y2 count as inside the box.

    Returns:
        Tensor: (K,) int64, the indices of the boxes taken.

    Raises:
        ValueError: If the method is none of these.
    """
    if method not in (NAIVE, LINEAR, GAUSSIAN):
        raise ValueError(f'softnms knows method 0 (naive), 1 (linear) and 2 (gaussian), not {method}')
    coords = as_array(boxes).copy()
    score = as_array(scores).astype(coords.dtype)
    real = coords.dtype.type
    iou_threshold, sigma, min_score = real(iou_threshold), real(sigma), real(min_score)
    inds = np.arange(len(coords))
    count = len(coords)
    taken = 0
    with np.errstate(all='ignore'):
        while taken < count:
            best = taken + _first_maximum(score[taken:count])
            for values in (coords, score, inds):
                values[[taken, best]] = values[[best, taken]]
            left = slice(taken + 1, count)
            iou = pairwise_iou(coords[taken : taken + 1], coords[left], offset)[0]
            if method == GAUSSIAN:
                score[left] *= np.exp(-(iou * iou) / sigma)
            else:
                decay = 1 - iou if method == LINEAR else np.zeros_like(iou)
                score[left] *= np.where(iou >= iou_threshold, decay, real(1))
            taken += 1
            count = taken + _drop(score[left] < min_score, coords[left], score[left], inds[left])
    dets[:count, :4] = torch.from_numpy(coords[:count]).to(dets)
    dets[:count, 4] = torch.from_numpy(score[:count]).to(dets)
    return torch.from_numpy(inds[:count].copy())


def _first_maximum(score: np.ndarray) -> int:
    """Where a search that starts at the first score and moves on only to a greater one ends; NaN is never greater."""
    if np.isnan(score[0]):
        return 0
    return int(np.where(np.isnan(score), -np.inf, score).argmax())


def _drop(dropped: np.ndarray, *arrays: np.ndarray) -> int:
    """Fill the places of dropped elements from the left with kept ones from the right; returns how many are kept."""
    kept = int(len(dropped) - dropped.sum())
    holes = np.flatnonzero(dropped[:kept])
    fillers = kept + np.flatnonzero(~dropped[kept:])[::-1]
    for values in arrays:
        values[holes] = values[fillers]
    return kept
