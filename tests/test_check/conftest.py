"""A small detector's post-processing, written apart from the code under test, with the evidence it would leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from mmdeploy_lite.check import DetectionEvidence, Detections, NmsCall


def iou_of(a: np.ndarray, b: np.ndarray) -> float:
    w = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    h = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - w * h
    return w * h / union if union > 0 else 0.0


@dataclass
class Scene:
    """Raw candidates of a model and its test config."""

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    score_thr: float = 0.05
    iou_threshold: float = 0.5
    cap: int | None = None
    class_agnostic: bool = False
    evidence: DetectionEvidence = field(default_factory=DetectionEvidence)

    def run(self, move_scores: float | np.ndarray = 0, move_boxes: float | np.ndarray = 0) -> Detections:
        """Threshold, NMS, cap, on candidates that moved by so much. Unmoved, it leaves the evidence behind."""
        boxes, scores = self.boxes + move_boxes, self.scores + move_scores
        passed = np.flatnonzero(scores > self.score_thr)
        kept: list[int] = []
        for i in passed[np.argsort(-scores[passed], kind='stable')]:
            rivals = [j for j in kept if self.class_agnostic or self.labels[j] == self.labels[i]]
            if all(iou_of(boxes[i], boxes[j]) <= self.iou_threshold for j in rivals):
                kept.append(int(i))
        kept = kept[: self.cap]
        if not np.any(move_scores) and not np.any(move_boxes):
            self.evidence = DetectionEvidence(
                score_thrs=(self.score_thr,),
                max_per_img=self.cap,
                nms_calls=[
                    NmsCall(
                        boxes[passed].astype(np.float32),
                        scores[passed].astype(np.float32),
                        self.labels[passed],
                        self.iou_threshold,
                        self.class_agnostic,
                    )
                ],
            )
        return Detections(
            boxes[kept].astype(np.float32).reshape(-1, 4),
            scores[kept].astype(np.float32),
            self.labels[kept].astype(np.int64),
        )


@pytest.fixture(scope='session')
def scene() -> Callable[..., Scene]:
    """Build a scene from lists: boxes, scores, labels (all 0 when left out) and the test config."""

    def build(boxes: object, scores: object, labels: object = None, **config: object) -> Scene:
        scores = np.array(scores, np.float64)
        labels = np.zeros(len(scores), np.int64) if labels is None else np.array(labels, np.int64)
        return Scene(np.array(boxes, np.float64).reshape(-1, 4), scores, labels, **config)

    return build


@pytest.fixture(scope='session')
def dets() -> Callable[..., Detections]:
    """Build detections from lists."""

    def build(boxes: object, scores: object, labels: object = None, masks: np.ndarray | None = None) -> Detections:
        scores = np.array(scores, np.float32)
        labels = np.zeros(len(scores), np.int64) if labels is None else np.array(labels, np.int64)
        return Detections(np.array(boxes, np.float32).reshape(-1, 4), scores, labels, masks)

    return build
