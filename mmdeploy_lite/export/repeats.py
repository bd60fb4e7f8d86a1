"""Operators that repeat until something is settled: each a ``Loop`` in the graph.

As those of :mod:`~mmdeploy_lite.export.operators`, functions of tensors that compute the true answer in PyTorch. The
tracer records a script's loops; for ``torch.export`` :mod:`~mmdeploy_lite.export.symbolic_loops` has them in ONNX.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .shapes import axis_size
from .tracing import is_symbolic


def _settle(suppresses: Tensor) -> Tensor:
    keep = torch.ones_like(suppresses.sum(0))
    changed = True
    while changed:
        settled = (torch.matmul(keep, suppresses) == 0).to(keep.dtype)
        changed = bool((settled != keep).any())
        keep = settled
    return keep


def settle(suppresses: Tensor) -> Tensor:
    """Greedy suppression, as a ``Loop`` over whole rounds.

    A candidate is kept when no kept one suppresses it. In each round all are decided by the last round's answer; the
    first is right from the start, each next one at the latest a round after those before it, so the answer that does
    not change any more is the greedy one.

    Args:
        suppresses: (n, n) float32, 1 where the candidate of the row would suppress that of the column; only above the
            diagonal.

    Returns:
        (n,) float32, 1 for those kept.
    """
    if is_symbolic():
        return torch.ops.mmdeploy_lite.settle(suppresses)
    return torch.jit.script(_settle)(suppresses)


def _soft_nms(
    boxes: Tensor, scores: Tensor, iou_threshold: float, sigma: float, min_score: float, method: int, offset: int
) -> tuple[Tensor, Tensor]:
    x1, y1, x2, y2 = boxes[:, 0], boxes[:, 1], boxes[:, 2], boxes[:, 3]
    area = (x2 - x1 + offset) * (y2 - y1 + offset)
    place = torch.arange(boxes.size(0), device=boxes.device)
    taken = torch.full_like(place, boxes.size(0))
    turn = torch.zeros_like(place[:1])
    left = scores > -math.inf
    rejected = torch.full_like(scores[:1], -math.inf)
    while bool(left.any()):
        best = torch.where(left, scores, rejected).argmax(0, keepdim=True)
        chosen = place == best
        taken = torch.where(chosen, turn, taken)
        left = left & torch.logical_not(chosen)
        width = (torch.minimum(x2, x2[best]) - torch.maximum(x1, x1[best]) + offset).clamp(min=0)
        height = (torch.minimum(y2, y2[best]) - torch.maximum(y1, y1[best]) + offset).clamp(min=0)
        iou = width * height / (area[best] + area - width * height)
        if method == 2:
            decay = torch.exp(-(iou * iou) / sigma)
        elif method == 1:
            decay = torch.where(iou >= iou_threshold, 1 - iou, torch.ones_like(iou))
        else:
            decay = torch.where(iou >= iou_threshold, torch.zeros_like(iou), torch.ones_like(iou))
        scores = torch.where(left, scores * decay, scores)
        left = left & (scores >= min_score)
        turn = turn + 1
    return scores, taken


def soft_nms(
    boxes: Tensor, scores: Tensor, iou_threshold: float, sigma: float, min_score: float, method: int, offset: int
) -> tuple[Tensor, Tensor]:
    """Soft-NMS (https://arxiv.org/abs/1704.04503) as a ``Loop`` over the boxes taken.

    The box with the highest score is taken, and the scores of those left decay by their IoU with it; those that fall
    below ``min_score`` go.

    Args:
        boxes: (n, 4) x1 y1 x2 y2.
        scores: (n,); :data:`REJECTED` ones take no part.
        iou_threshold: from which IoU on scores decay; not used by method 2.
        sigma: of method 2.
        min_score: as said.
        method: 0 sets the score to zero, 1 multiplies it by ``1 - iou``, 2 by ``exp(-iou ** 2 / sigma)``.
        offset: 0, or 1 where x2 and y2 count as inside the box.

    Returns:
        The boxes taken, in that order: indices (k,) int64 and their scores (k,).
    """
    options = float(iou_threshold), float(sigma), float(min_score), int(method), int(offset)
    if is_symbolic():
        decayed, taken = torch.ops.mmdeploy_lite.soft_nms(boxes, scores, *options)
    else:
        decayed, taken = torch.jit.script(_soft_nms)(boxes, scores, *options)
    turns, order = taken.sort()
    keep = order[(turns < axis_size(taken, 0)).nonzero().squeeze(1)]
    return keep, decayed[keep]


def _lay_masks(masks: Tensor, overlap_thr: float) -> Tensor:
    """Which of the masks, from 1, has each pixel: one after the other, where none before it has."""
    ids = torch.zeros(masks.shape[1:], dtype=torch.long, device=masks.device)
    for index in range(masks.shape[0]):
        mask = masks[index]
        free = mask & (ids == 0)
        area, shared = mask.sum(), (mask & (ids > 0)).sum()
        fits = (area > 0) & (shared / (area + 1e-5) <= overlap_thr)
        ids = torch.where(free & fits, torch.full_like(ids, index + 1), ids)
    return ids


def lay_masks(masks: Tensor, overlap_thr: float) -> Tensor:
    """Masks laid one after the other, each where none before it is.

    Args:
        masks: (n, H, W) bool.
        overlap_thr: a mask of which a larger part is taken already is left out.

    Returns:
        (H, W) int64: which of them, from 1, has each pixel; 0 for none.
    """
    if is_symbolic():
        return torch.ops.mmdeploy_lite.lay_masks(masks, overlap_thr)
    return torch.jit.script(_lay_masks)(masks, overlap_thr)
