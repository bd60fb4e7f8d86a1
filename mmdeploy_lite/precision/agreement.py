"""How much of PyTorch's answer a less exact file still gives: a measure that needs no annotations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..check.answers import Detections, PanopticMap, RawTensors, SegMap
from ..check.overlaps import iou

IOU = 0.5
"""From which overlap on two boxes, or masks, of one label show the same object, as mAP50 has it."""

SURE = 0.3
"""Detections below are not counted where there are some above: what hardly anybody draws or acts upon."""


@dataclass
class Agreement:
    """One image.

    Attributes:
        image: its name.
        what: 'detections', 'pixels' or 'numbers': what is counted.
        reference: how many PyTorch has.
        found: how many of these the file has too.
        answered: how many the file has.
        confirmed: how many of these PyTorch has too.
        worst_score: largest difference of the scores of two that are alike; 0 where there are no scores.
    """

    image: str
    what: str
    reference: int
    found: int
    answered: int
    confirmed: int
    worst_score: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain json types."""
        return {**vars(self), 'share': share([self])}


def share(items: Sequence[Agreement]) -> float | None:
    """From 0 to 1: of what either side has in all images, what the other has too; None where neither has anything."""
    total = sum(item.reference + item.answered for item in items)
    return round(sum(item.found + item.confirmed for item in items) / total, 4) if total else None


def agreement(image: str, reference: Any, answer: Any) -> Agreement:
    """Compare one answer with PyTorch's.

    Args:
        image: its name.
        reference: PyTorch's answer, of :mod:`mmdeploy_lite.check.answers`.
        answer: the file's.
    """
    if isinstance(reference, Detections):
        return _of_detections(image, reference, answer)
    if isinstance(reference, (SegMap, PanopticMap)):
        return _of_maps(image, reference.classes, answer.classes)
    assert isinstance(reference, RawTensors)
    return _of_tensors(image, reference, answer)


def _of_maps(image: str, reference: np.ndarray, answer: np.ndarray) -> Agreement:
    same = int((reference == answer).sum()) if reference.shape == answer.shape else 0
    return Agreement(image, 'pixels', reference.size, same, answer.size, same)


def _of_tensors(image: str, reference: RawTensors, answer: RawTensors) -> Agreement:
    """Numbers within a hundredth of their tensor's range."""
    total, same = np.zeros(2, int), 0
    for name, wanted in reference.tensors.items():
        got = answer.tensors[name]
        total += wanted.size, got.size
        if wanted.shape == got.shape and wanted.size:
            allowed = 0.01 * (float(wanted.max()) - float(wanted.min()))
            same += int((np.abs(wanted.astype(np.float64) - got) <= allowed).sum())
    return Agreement(image, 'numbers', int(total[0]), same, int(total[1]), same)


def _of_detections(image: str, reference: Detections, answer: Detections) -> Agreement:
    """Pairs of one label that overlap, those with the best scores first.

    One that is sure here and not quite there counts as found: it is looked for among all that the other side has.
    """
    threshold = SURE if (reference.scores >= SURE).any() or (answer.scores >= SURE).any() else 0.0
    sure, theirs = reference.scores >= threshold, answer.scores >= threshold
    found, worst = _found(reference, answer, sure)
    confirmed, other = _found(answer, reference, theirs)
    return Agreement(
        image, 'detections', int(sure.sum()), found, int(theirs.sum()), confirmed, round(max(worst, other), 4)
    )


def _found(one: Detections, other: Detections, wanted: np.ndarray) -> tuple[int, float]:
    """How many of the wanted ones the other side has too, and the largest difference of their scores."""
    free = np.ones(len(other), bool)
    found, worst = 0, 0.0
    rows = np.flatnonzero(wanted)
    for row in rows[np.argsort(-one.scores[rows], kind='stable')]:
        overlap = _overlaps(one, int(row), other)
        overlap[~free | (other.labels != one.labels[row])] = 0
        best = int(overlap.argmax()) if len(overlap) else -1
        if best >= 0 and overlap[best] >= IOU:
            free[best] = False
            found += 1
            worst = max(worst, abs(float(one.scores[row]) - float(other.scores[best])))
    return found, worst


def _overlaps(one: Detections, row: int, other: Detections) -> np.ndarray:
    """(K,) IoU of a detection with all of the other side: of masks where both have them, else of boxes."""
    if one.masks is not None and other.masks is not None and one.masks.shape[1:] == other.masks.shape[1:]:
        mask = one.masks[row]
        both = (other.masks & mask).sum(axis=(1, 2))
        either = (other.masks | mask).sum(axis=(1, 2))
        return both / np.maximum(either, 1)
    return iou(one.bboxes[row][None], other.bboxes)[0]
