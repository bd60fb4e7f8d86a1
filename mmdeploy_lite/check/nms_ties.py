"""Which candidates of an NMS call are kept or suppressed for sure, and which hang on rounding.

NMS is a cascade of yes-no decisions: is this score the higher one, is this IoU above the threshold? Where a score
difference or an IoU is within rounding of its limit, both answers are right, and so are all that follow from either.
This module runs NMS over PyTorch's own candidates with three values instead of two.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from mmdeploy_lite.check.answers import NmsCall


class Fate(IntEnum):
    """What NMS does with a candidate in every run that differs from the recorded one by rounding."""

    SUPPRESSED = 0
    """Not in the result, in any of them."""
    UNDECIDED = 1
    """In the result of some, maybe."""
    KEPT = 2
    """In the result of each."""


def offset_boxes(call: NmsCall, boxes: np.ndarray, idxs: np.ndarray) -> np.ndarray:
    """Move boxes to where NMS compares them: groups that do not compete lie apart.

    Args:
        call: The recorded call; its candidates set the size of the offset.
        boxes: (M, 4) in the call's pixels.
        idxs: (M,) their groups.

    Returns:
        (M, 4) float64.
    """
    boxes = boxes.astype(np.float64)
    if call.class_agnostic or not len(call.boxes):
        return boxes
    span = float(call.boxes.max()) + 1
    if not call.class_offset:
        span = float(call.boxes.max()) - float(call.boxes.min()) + 1
    return boxes + idxs.astype(np.float64)[:, None] * span


def offset_rounding(call: NmsCall) -> float:
    """How far adding the class offset in float32 may move a coordinate, in pixels: 0.06 px at LVIS' 1,203 classes."""
    if call.class_agnostic or not call.class_offset or not len(call.boxes):
        return 0.0
    largest = np.abs(offset_boxes(call, call.boxes, call.idxs)).max()
    return float(np.spacing(np.float32(largest))) / 2 if np.isfinite(largest) else 0.0


def iou_bounds(box: np.ndarray, boxes: np.ndarray, box_tol: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    r"""Lowest and highest IoU of a box with others when every coordinate may move by the box tolerance.

    With intersection I = iw * ih, areas A and B and union U = A + B - I, the IoU changes by
    ``dIoU = (dI (1 + IoU) - IoU (dA + dB)) / U``. Of the two boxes' x coordinates on one side, one bounds the
    intersection and the other does not; moving the first changes I by ih and its area by its height, moving the second
    only its area. The magnitudes add up to at most ``(ih (1 + IoU) + IoU |hA - hB|) / U`` per side, for both sides
    twice that, for y the same with widths::

        |dIoU| <= 2 (dx (ih (1 + IoU) + IoU |hA - hB|) + dy (iw (1 + IoU) + IoU |wA - wB|)) / U

    (two equal squares of side s at IoU 0.5: at most 3.75 d / s). By the mean value theorem this holds for finite moves
    when every quantity is taken at its worst within the moves, which is what is computed.

    Args:
        box: (4,) x1 y1 x2 y2 in pixels.
        boxes: (M, 4).
        box_tol: (dx, dy), how far x and y coordinates may move, in pixels.

    Returns:
        Two (M,) float64 arrays. Boxes that cannot touch, and boxes of negative size, have IoU 0, as in mmcv.
    """
    dx, dy = box_tol
    low, high = np.zeros(len(boxes)), np.zeros(len(boxes))
    with np.errstate(all='ignore'):
        iw = np.minimum(box[2], boxes[:, 2]) - np.maximum(box[0], boxes[:, 0])
        ih = np.minimum(box[3], boxes[:, 3]) - np.maximum(box[1], boxes[:, 1])
        near = np.flatnonzero((iw + 2 * dx > 0) & (ih + 2 * dy > 0))
        iw, ih, boxes = iw[near], ih[near], boxes[near]
        w, h = box[2] - box[0], box[3] - box[1]
        ws, hs = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
        inter = np.maximum(iw, 0) * np.maximum(ih, 0)
        union = w * h + ws * hs - inter
        iou = inter / union
        # Union and areas at their smallest, sides of the intersection and differences of the boxes' sides at their
        # largest.
        shrunk = union - 2 * dx * (np.abs(h) + np.abs(hs)) - 2 * dy * (np.abs(w) + np.abs(ws))
        alone = max(w - 2 * dx, 0) * max(h - 2 * dy, 0)
        others = np.maximum(ws - 2 * dx, 0) * np.maximum(hs - 2 * dy, 0)
        least = np.maximum(np.maximum(shrunk, alone), others)
        iw_most, ih_most = iw + 2 * dx, ih + 2 * dy
        iou_most = np.minimum(iw_most * ih_most / least, 1)
        slack_x = ih_most * (1 + iou_most) + iou_most * (np.abs(h - hs) + 4 * dy)
        slack_y = iw_most * (1 + iou_most) + iou_most * (np.abs(w - ws) + 4 * dx)
        slack = 2 * (dx * slack_x + dy * slack_y) / least
        # Boxes no larger than the tolerance can have any overlap.
        vague = ~(least > 0) & (dx + dy > 0)
        low[near] = np.where(vague, 0, iou - slack)
        high[near] = np.where(vague, 1, iou + slack)
    return low, high


def three_valued_nms(call: NmsCall, score_tol: float, box_tol: tuple[float, float]) -> np.ndarray:
    """Run NMS over the recorded candidates with three values.

    A candidate is suppressed for sure when one that is kept for sure, whose score is higher by more than the tolerance,
    has an IoU with it that is above the threshold for sure. It is kept for sure when no candidate of equal or higher
    score within tolerance, unless itself suppressed for sure, may have an IoU above the threshold. Otherwise it is
    undecided. A candidate whose score is within tolerance of one of the call's ``score_cuts`` may be missing and so is
    never kept for sure.

    Each fate only depends on fates of candidates with higher scores, so one pass in score order finds them all. It
    loops over the candidates that are not suppressed, each step vectorised over those that follow.

    Args:
        call: The recorded call. ``max_num`` is not applied: it cuts the result, not the candidates.
        score_tol: Scores nearer than this may swap.
        box_tol: (dx, dy), how far coordinates may move, in the call's pixels.

    Returns:
        (N,) int8 of :class:`Fate`.
    """
    fates = np.full(len(call.scores), Fate.SUPPRESSED, np.int8)
    scores = call.scores.astype(np.float64)
    boxes = offset_boxes(call, call.boxes, call.idxs)
    rounding = offset_rounding(call)
    box_tol = (box_tol[0] + rounding, box_tol[1] + rounding)
    sure = np.ones(len(scores), bool)
    present = np.ones(len(scores), bool)
    for cut in call.score_cuts:
        sure &= scores > cut + score_tol
        present &= scores > cut - score_tol
    for group in _competing_groups(call, box_tol):
        group = group[present[group]]
        group = group[np.argsort(-scores[group], kind='stable')]
        fates[group] = _run_group(
            boxes[group], scores[group], sure[group], float(call.iou_threshold), score_tol, box_tol
        )
    return fates


def _competing_groups(call: NmsCall, box_tol: tuple[float, float]) -> list[np.ndarray]:
    """Candidate indices split into sets that cannot touch one another, to keep the passes short."""
    everyone = np.arange(len(call.scores))
    if not len(everyone):
        return []
    # With class offsets, a coordinate below -1 reaches back into the group before it.
    crossing = call.class_offset and not float(call.boxes.min()) > 2 * max(box_tol) - 1
    if call.class_agnostic or crossing:
        return [everyone]
    order = np.argsort(call.idxs, kind='stable')
    return np.split(order, np.flatnonzero(np.diff(call.idxs[order])) + 1)


def _run_group(
    boxes: np.ndarray,
    scores: np.ndarray,
    sure: np.ndarray,
    threshold: float,
    score_tol: float,
    box_tol: tuple[float, float],
) -> np.ndarray:
    """Fates of candidates sorted by descending score; ``sure`` (N,) bool says which may be kept for sure."""
    suppressed = np.zeros(len(scores), bool)
    threatened = ~sure
    # First position whose score is lower by more than the tolerance.
    below = np.searchsorted(-scores, -(scores - score_tol), side='right')
    for i in range(len(scores)):
        if suppressed[i]:
            continue
        rest = i + 1 + np.flatnonzero(~suppressed[i + 1 :])
        low, high = iou_bounds(boxes[i], boxes[rest], box_tol)
        maybe = high > threshold
        if maybe[rest < below[i]].any():
            threatened[i] = True
        threatened[rest[maybe]] = True
        if not threatened[i]:
            # None of them is within tolerance in score: it would have threatened this one.
            suppressed[rest[low > threshold]] = True
    fates = np.where(threatened, Fate.UNDECIDED, Fate.KEPT)
    return np.where(suppressed, Fate.SUPPRESSED, fates).astype(np.int8)
