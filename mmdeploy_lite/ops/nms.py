"""Greedy non-maximum suppression."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

__all__ = ['nms', 'nms_match']

#: Boxes decided together, and boxes compared with them at a time: bounds memory to a few MB, and keeps it in the cache.
BLOCK = 256
CHUNK = 512


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int = 0) -> Tensor:
    """Keep each box that no kept box of higher score overlaps by more than a threshold.

    The semantics are those of mmcv's CPU kernel: ``iou = inter / (area_i + area_j - inter)`` with ``offset`` added to
    every width and height, suppression when it is strictly greater than the threshold. Corners are not reordered, so a
    box of negative size keeps its signed area. NaN never suppresses. Among equal scores the lower index comes first.
    Computed in the precision of ``boxes`` (float32 for half precision).

    Args:
        boxes (Tensor): (N, 4), x1 y1 x2 y2 in pixels.
        scores (Tensor): (N,).
        iou_threshold (float): The largest IoU that two kept boxes may have.
        offset (int): 0, or 1 where x2 and y2 count as inside the box.

    Returns:
        Tensor: (K,) int64, indices of the kept boxes by descending score, on the device of ``boxes``.
    """
    if boxes.numel() == 0:
        return boxes.new_empty((0,), dtype=torch.long)
    order = torch.sort(scores.detach(), descending=True, stable=True)[1].cpu()
    coords = as_array(boxes)[order.numpy()]
    threshold = coords.dtype.type(iou_threshold)
    keep = np.ones(len(coords), dtype=bool)
    with np.errstate(all='ignore'):
        for group in _independent_groups(coords, threshold, offset):
            keep[group] = _greedy(coords[group], threshold, offset)
    return order[torch.from_numpy(keep)].to(boxes.device)


def nms_match(dets: Tensor, iou_threshold: float) -> list[list[int]]:
    """Group boxes by the kept box that suppresses them.

    Other than in :func:`nms` an IoU equal to the threshold suppresses.

    Args:
        dets (Tensor): (N, 5), x1 y1 x2 y2 in pixels and the score.
        iou_threshold (float): From which IoU on a box belongs to the group of a kept one.

    Returns:
        list: Per kept box, by descending score, its index and those of the boxes it suppresses.
    """
    order = torch.sort(dets[:, 4].detach(), descending=True, stable=True)[1].cpu().numpy()
    coords = as_array(dets[:, :4])
    threshold = coords.dtype.type(iou_threshold)
    groups = []
    with np.errstate(all='ignore'):
        while len(order):
            best, rest = order[:1], order[1:]
            matched = pairwise_iou(coords[best], coords[rest], 0)[0] >= threshold
            groups.append([int(best[0]), *rest[matched].tolist()])
            order = rest[~matched]
    return groups


def as_array(values: Tensor) -> np.ndarray:
    """Values in main memory, float64 if they are that, else float32."""
    values = values.detach().cpu()
    return (values if values.dtype == torch.float64 else values.float()).numpy()


def _independent_groups(coords: np.ndarray, threshold: np.floating, offset: int) -> list[np.ndarray]:
    """Split boxes where no box to the left of a cut overlaps one to its right.

    Boxes without intersection have IoU 0 (or NaN) and cannot suppress each other. Classes shifted apart by
    ``batched_nms`` thus fall into groups of their own, which saves most of the pairs.

    Returns:
        list[np.ndarray]: Ascending indices into ``coords`` per group.
    """
    if len(coords) <= BLOCK or not threshold >= 0:
        return [np.arange(len(coords))]
    by_left = np.argsort(coords[:, 0], kind='stable')
    reach = np.maximum.accumulate(coords[by_left, 2])
    # The same expression, rounding included, as the width of the intersection: monotonic in both coordinates, so what
    # holds for the furthest right edge holds for every box before it. NaN makes no cut.
    cuts = np.flatnonzero(reach[:-1] - coords[by_left[1:], 0] + coords.dtype.type(offset) <= 0) + 1
    starts = [0]
    for cut in cuts.tolist():
        if cut - starts[-1] >= BLOCK // 2:  # smaller groups would cost more in calls than they save in pairs
            starts.append(cut)
    return [np.sort(group) for group in np.split(by_left, starts[1:])]


def _greedy(coords: np.ndarray, threshold: np.floating, offset: int) -> np.ndarray:
    """Which of the boxes, given by descending score, survive: (N,) bool.

    Works through the boxes in blocks. Inside a block each kept box in turn suppresses the rest of the block; then the
    kept ones suppress what comes after it, and the suppressed are dropped before the next block.
    """
    kept = np.zeros(len(coords), dtype=bool)
    alive = np.arange(len(coords))
    while len(alive):
        block, alive = alive[:BLOCK], alive[BLOCK:]
        suppresses = pairwise_iou(coords[block], coords[block], offset) > threshold
        survives = np.ones(len(block), dtype=bool)
        for i in range(len(block)):
            if survives[i]:
                survives[i + 1 :] &= ~suppresses[i, i + 1 :]
        block = block[survives]
        kept[block] = True
        rest = [alive[i : i + CHUNK] for i in range(0, len(alive), CHUNK)]
        rest = [part[~(pairwise_iou(coords[block], coords[part], offset) > threshold).any(axis=0)] for part in rest]
        alive = np.concatenate(rest) if rest else alive
    return kept


def pairwise_iou(a: np.ndarray, b: np.ndarray, offset: int) -> np.ndarray:
    """Intersection over union of each of the boxes (N, 4) with each of (M, 4): (N, M)."""
    one = a.dtype.type(offset)
    a = a.T[:, :, None]
    b = b.T[:, None, :]
    area_a = (a[2] - a[0] + one) * (a[3] - a[1] + one)
    area_b = (b[2] - b[0] + one) * (b[3] - b[1] + one)
    inter = np.minimum(a[2], b[2])
    inter -= np.maximum(a[0], b[0])
    inter += one
    np.maximum(inter, 0, out=inter)
    height = np.minimum(a[3], b[3])
    height -= np.maximum(a[1], b[1])
    height += one
    np.maximum(height, 0, out=height)
    inter *= height
    union = area_a + area_b
    union -= inter
    inter /= union
    return inter
