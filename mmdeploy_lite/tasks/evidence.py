"""What PyTorch shows about its own answer, recorded while it answers."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from ..check.answers import DetectionEvidence, Detections, NmsCall
from ..check.tolerance import Tolerance
from ..rewriters.mmcv_ops import nms_kind
from ..rewriting import FunctionRewriter, RewriteContext
from .level_evidence import RecordCandidates, RecordFilter, RecordMulticlass, RecordRoILevels
from .mask_evidence import MASK_THRESHOLDS, RecordPaste, RecordPoints, RecordQueries, RecordThreshold


class _RecordNMS(FunctionRewriter):
    """Keeps the candidates of every NMS call."""

    target = 'mmcv.ops.nms.batched_nms'

    def __init__(self) -> None:
        self.calls: list[NmsCall] = []

    def __call__(
        self,
        origin: Callable,
        boxes: Tensor,
        scores: Tensor,
        idxs: Tensor,
        nms_cfg: dict | None,
        class_agnostic: bool = False,
    ) -> tuple[Tensor, Tensor]:
        result = origin(boxes, scores, idxs, nms_cfg, class_agnostic)
        if nms_cfg is not None and boxes.shape[-1] == 4 and nms_kind(nms_cfg) == 'nms':
            cuts = [nms_cfg['score_threshold']] if nms_cfg.get('score_threshold', 0) > 0 else []
            self.calls.append(
                NmsCall(
                    boxes.float().cpu().numpy(),
                    scores.float().cpu().numpy(),
                    idxs.long().cpu().numpy(),
                    float(nms_cfg.get('iou_threshold', nms_cfg.get('iou_thr', 1.0))),
                    bool(nms_cfg.get('class_agnostic', class_agnostic)),
                    nms_cfg.get('max_num'),
                    tuple(cuts),
                    class_offset=boxes.shape[0] < nms_cfg.get('split_thr', 10000),
                    kept=result[1].long().cpu().numpy(),
                )
            )
        return result


class EvidenceRecorder:
    """Collects evidence during one run of a detector.

    Args:
        test_cfg: the model's; the ``rcnn`` part of a two-stage model is the one that makes the answer.
        tolerance: within which PyTorch counts as undecided.
    """

    def __init__(self, test_cfg: Any, tolerance: Tolerance) -> None:
        self.cfg = (test_cfg or {}).get('rcnn') or test_cfg or {}
        self.tolerance = tolerance
        self.nms = _RecordNMS()
        self.points = RecordPoints(tolerance.mask)
        self.paste = RecordPaste(_mask_threshold(self.cfg), tolerance.mask, self.points)
        self.masks = RecordThreshold(_mask_threshold(self.cfg), tolerance.mask)
        self.queries = RecordQueries(self.masks)
        self.filter = RecordFilter()
        self.multiclass = RecordMulticlass()
        self.rejected = [self.filter, self.multiclass]
        self.candidates = RecordCandidates(self.filter)
        self.roi_levels = RecordRoILevels()

    @property
    def recorders(self) -> dict[str, FunctionRewriter]:
        """By key, for a :class:`RewriteContext`."""
        return {
            'nms': self.nms,
            'paste': self.paste,
            'points': self.points,
            'queries': self.queries,
            'filter': self.filter,
            'multiclass_nms': self.multiclass,
            'candidates': self.candidates,
            'roi_levels': self.roi_levels,
        }

    def _score_thrs(self) -> tuple[float, ...]:
        """The threshold that final scores had to pass.

        Not where class scores are multiplied by a centerness after the threshold: candidates then lie below it, and
        it says nothing about final scores.
        """
        threshold = self.cfg.get('score_thr')
        if threshold is None:
            return ()
        calls = self.nms.calls
        if calls and len(calls[-1].scores) and calls[-1].scores.min() < threshold - self.tolerance.score:
            return ()
        return (float(threshold),)

    def evidence(
        self,
        answer: Detections,
        scale: Sequence[float],
        float64: Callable[[], tuple[Detections, EvidenceRecorder] | None],
    ) -> DetectionEvidence:
        """What was recorded, for one image.

        Args:
            answer: PyTorch's answer.
            scale: (w, h) from original pixels to the pixels of ``image``.
            float64: runs the model in double precision: the answer, and what was recorded of it.
        """
        float64 = functools.cache(float64)
        calls = self.nms.calls
        in_image_pixels = not calls or _inside(answer.bboxes * np.tile(scale, 2), calls[-1].boxes)
        record = next((record for record in (self.paste, self.masks) if len(answer) and record.is_of(answer)), None)

        def rounded() -> np.ndarray | None:
            double = float64()
            if double is None:
                return None
            # the backend rounds as much as PyTorch does, and not the same way
            theirs = double[1].paste if record is self.paste else double[1].masks
            return record.undecided(2 * record.rounding(answer, double[0], theirs))

        return DetectionEvidence(
            score_thrs=self._score_thrs(),
            max_per_img=self.cfg.get('max_per_img'),
            nms_calls=calls,
            scale=tuple(map(float, scale)) if in_image_pixels else (1.0, 1.0),
            float64=lambda: None if (double := float64()) is None else double[0],
            rejected=next((item.count for item in reversed(self.rejected) if item.count is not None), None),
            levels=self.candidates.levels or self.multiclass.levels(calls),
            rois_per_level=tuple(self.roi_levels.rois),
            preselected=self.filter.cut,
            mask_undecided=None if record is None else record.undecided(),
            mask_rounded=None if record is None else rounded,
        )


def _inside(boxes: np.ndarray, candidates: np.ndarray) -> bool:
    """Every box is one of the candidates: they are in the same pixels."""
    if not len(boxes):
        return True
    nearest = [np.abs(candidates - box).max(axis=1).min() for box in boxes[:5]]
    return bool(len(candidates)) and max(nearest) < 1e-2 + 1e-4 * np.abs(boxes).max()


@contextlib.contextmanager
def record_evidence(model: nn.Module, tolerance: Tolerance) -> Iterator[EvidenceRecorder]:
    """Record evidence from the model's runs inside."""
    recorder = EvidenceRecorder(getattr(model, 'test_cfg', None), tolerance)
    with RewriteContext(recorder.recorders), recorder.masks.in_place_of_thresholds(model):
        yield recorder


def _mask_threshold(cfg: Any) -> float:
    return float(next((cfg[key] for key in MASK_THRESHOLDS if key in cfg), 0.5))
