"""What the compared images did not exercise of NMS and of a detector's levels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmdeploy_lite.check.answers import DetectionEvidence, Detections, Levels
from mmdeploy_lite.check.overlaps import iou

_CLOSE = 0.1
"""An IoU threshold that could be moved by so much, and nothing would change, was not exercised."""

_MOST = 5000
"""So many candidates, the best, are looked at."""

_Pairs = Sequence[tuple[Detections, DetectionEvidence]]


def between_boxes(pairs: _Pairs) -> list[str]:
    """Which IoU thresholds would have answered the same, and whether boxes of different classes met.

    Args:
        pairs: PyTorch's answers and their evidence.
    """
    lowest, highest, threshold = 0.0, 1.0, None
    apart, met, suppressed = False, False, False
    for answer, evidence in pairs:
        if not evidence.nms_calls or not len(answer):
            continue
        call = evidence.nms_calls[-1]
        if call.iou_threshold >= 1:
            continue
        threshold = call.iou_threshold
        boxes = answer.bboxes * np.tile(np.float32(evidence.scale), 2)
        kept = iou(boxes, boxes)
        np.fill_diagonal(kept, 0)
        same = np.ones_like(kept, bool) if call.class_agnostic else answer.labels[:, None] == answer.labels
        if not call.class_agnostic:
            apart = True
            met = met or bool((kept[~same] > threshold).any())
        lowest = max(lowest, float(kept[same].max(initial=0)))
        gone = _suppressed_ious(boxes, answer, call.boxes, call.scores, call.idxs, evidence)
        suppressed = suppressed or bool(len(gone))
        highest = min(highest, float(gone.min(initial=1)))
    missing = []
    if threshold is not None and suppressed and highest - threshold > _CLOSE:
        missing.append(f'the IoU threshold {threshold:g} of NMS could as well be {highest:.2f}: no overlap is between')
    if threshold is not None and threshold - lowest > _CLOSE:
        missing.append(f'the IoU threshold {threshold:g} of NMS could as well be {lowest:.2f}: no overlap is between')
    if apart and not met:
        missing.append('no objects of different classes overlap as much as NMS allows within one')
    return missing


def _suppressed_ious(
    kept: np.ndarray,
    answer: Detections,
    boxes: np.ndarray,
    scores: np.ndarray,
    idxs: np.ndarray,
    evidence: DetectionEvidence,
) -> np.ndarray:
    """The largest IoU of each candidate that NMS removed with what it kept."""
    call = evidence.nms_calls[-1]
    passed = scores > max((*call.score_cuts, *evidence.score_thrs), default=-np.inf)
    if evidence.max_per_img is not None and len(answer) >= evidence.max_per_img:
        passed &= scores > answer.scores.min()  # the cap may have removed the others
    rows = np.flatnonzero(passed)
    rows = rows[np.argsort(-scores[rows], kind='stable')[:_MOST]]
    overlaps = iou(boxes[rows], kept)
    higher = answer.scores > scores[rows][:, None]
    if not call.class_agnostic:
        higher &= answer.labels == idxs[rows][:, None]
    overlaps = np.where(higher, overlaps, 0).max(axis=1, initial=0)
    return overlaps[overlaps > call.iou_threshold]


def of_levels(pairs: _Pairs) -> list[str]:
    """Levels of the pyramid that no answer needed, and whether ``nms_pre`` left out anything.

    Args:
        pairs: PyTorch's answers and their evidence.
    """
    missing = []
    needed: dict[int, int] = {}
    rois: dict[int, int] = {}
    twice, known = False, False
    for answer, evidence in pairs:
        for level, count in enumerate(evidence.rois_per_level):
            rois[level] = rois.get(level, 0) + count
        if evidence.levels is not None:
            rows = _candidates(answer, evidence.levels)
            levels = evidence.levels.levels[rows]
            for level in range(evidence.levels.count):
                needed[level] = needed.get(level, 0) + int((levels == level).sum())
            known = known or not evidence.nms_calls or not evidence.nms_calls[-1].class_agnostic
            places = set(zip(levels.tolist(), evidence.levels.places[rows].tolist(), strict=True))
            twice = twice or len(places) < len(rows)
    if known and not twice:
        missing.append('no place of the head gives objects of two classes')
    missing += _unused(needed, 'no object comes from')
    missing += _unused(rois, 'no RoI is on')
    known = [evidence.preselected for _, evidence in pairs if evidence.preselected is not None]
    if known and not any(known):
        missing.append('no level has more candidates than nms_pre')
    return missing


def _unused(counts: dict[int, int], what: str) -> list[str]:
    levels = [str(level + 1) for level, count in sorted(counts.items()) if not count]
    if not levels or len(counts) == 1:
        return []
    return [f'{what} level {", ".join(levels)} of {len(counts)}, the finest being 1']


def _candidates(answer: Detections, known: Levels) -> np.ndarray:
    """The candidate that each object of the answer was."""
    rows = [
        int(np.argmin(np.abs(known.scores - score) + (known.labels != label)))
        for score, label in zip(answer.scores, answer.labels, strict=True)
    ]
    return np.array(rows, np.int64)
