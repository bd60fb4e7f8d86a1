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
from ..rewriting import FunctionRewriter, RewriteContext


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
        if nms_cfg is not None and boxes.shape[-1] == 4:
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
                )
            )
        return origin(boxes, scores, idxs, nms_cfg, class_agnostic)


class _CountRejected(FunctionRewriter):
    """Counts the scores that a threshold rejects, where the libraries do it in a function of their own."""

    target = 'mmdet.models.utils.misc.filter_scores_and_topk'

    def __init__(self) -> None:
        self.count: int | None = None

    def __call__(self, origin: Callable, scores: Tensor, score_thr: float, *args: Any, **kwargs: Any) -> Any:
        self.count = (self.count or 0) + int((scores <= score_thr).sum())
        return origin(scores, score_thr, *args, **kwargs)


class _CountRejectedByNMS(_CountRejected):
    target = 'mmdet.models.layers.bbox_nms.multiclass_nms'

    def __call__(
        self, origin: Callable, boxes: Tensor, scores: Tensor, score_thr: float, *args: Any, **kwargs: Any
    ) -> Any:
        self.count = (self.count or 0) + int((scores[:, :-1] <= score_thr).sum())
        return origin(boxes, scores, score_thr, *args, **kwargs)


class _RecordPaste(FunctionRewriter):
    """Keeps the pasted mask probabilities, each only where it was pasted."""

    target = 'mmdet.models.roi_heads.mask_heads.fcn_mask_head._do_paste_mask'

    def __init__(self, threshold: float, tolerance: float) -> None:
        self.threshold, self.tolerance = threshold, tolerance
        self.size = (0, 0)
        self.pasted: list[tuple[np.ndarray, tuple[slice, ...]]] = []
        self.slopes: list[float] = []

    def __call__(
        self, origin: Callable, masks: Tensor, boxes: Tensor, img_h: Any, img_w: Any, skip_empty: bool = True
    ) -> tuple:
        # the original's grid of pixels is float32 whatever the masks are, and refuses masks in float64
        pasted, place = origin(masks.float(), boxes.float(), img_h, img_w, skip_empty=skip_empty)
        self.size = int(img_h), int(img_w)
        self.pasted += [(mask, place) for mask in pasted.cpu().numpy()]
        self.slopes += map(_slope, masks.float().cpu().numpy()[:, 0], boxes.float().cpu().numpy())
        return pasted, place

    def full(self, row: int) -> np.ndarray:
        """(H, W) float32 probabilities of one mask, zero where it was not pasted."""
        full = np.zeros(self.size, np.float32)
        mask, place = self.pasted[row]
        full[place] = mask
        return full

    def undecided(self, margins: np.ndarray | None = None) -> np.ndarray:
        """(K, H, W) bool, where a probability lies within tolerance, or (K,) ``margins``, of the threshold."""
        margins = np.full(len(self.pasted), self.tolerance) if margins is None else margins
        undecided = np.zeros((len(self.pasted), *self.size), bool)
        for row, (mask, place) in enumerate(self.pasted):
            undecided[row][place] = np.abs(mask - self.threshold) <= margins[row]
        return undecided

    def rounding(self, answer: Detections, double: Detections, pasted: _RecordPaste) -> np.ndarray:
        """(K,) by how much rounding moves each mask's probabilities, as PyTorch shows it.

        Two things count: how far float32 is from float64 in that mask, and how far in any box of the image, for a mask
        moves with its box and one box's rounding is chance.

        Args:
            answer: in float32, whose masks were recorded here.
            double: in float64.
            pasted: recorded while that was made.
        """
        moved, box = np.zeros(len(answer)), 0.0
        if not len(double) or self.size != pasted.size:
            return moved
        for row in range(len(answer)):
            away = np.abs(double.bboxes - answer.bboxes[row]).max(axis=1)
            away[double.labels != answer.labels[row]] = np.inf
            nearest = int(away.argmin())
            if away[nearest] <= Tolerance().box(self.size):
                box = max(box, float(away[nearest]))
                moved[row] = np.abs(self.full(row) - pasted.full(nearest)).max()
        return np.maximum(moved, box * np.array(self.slopes))


def _slope(mask: np.ndarray, box: np.ndarray) -> float:
    """By how much a probability changes at most when its mask (h, w) moves by one pixel with its box."""
    edged = np.pad(mask, 1)
    (x1, y1, x2, y2), (rows, columns) = box, mask.shape
    down = np.abs(np.diff(edged, axis=0)).max() * rows / max(y2 - y1, 1e-3)
    return float(down + np.abs(np.diff(edged, axis=1)).max() * columns / max(x2 - x1, 1e-3))


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
        self.paste = _RecordPaste(float(self.cfg.get('mask_thr_binary', 0.5)), tolerance.mask)
        self.rejected = [_CountRejected(), _CountRejectedByNMS()]

    @property
    def recorders(self) -> dict[str, FunctionRewriter]:
        """By key, for a :class:`RewriteContext`."""
        return {'nms': self.nms, 'paste': self.paste, 'filter': self.rejected[0], 'multiclass_nms': self.rejected[1]}

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
        pasted = len(answer) > 0 and len(self.paste.pasted) == len(answer)

        def rounded() -> np.ndarray | None:
            double = float64()
            if double is None:
                return None
            # the backend rounds as much as PyTorch does, and not the same way
            return self.paste.undecided(2 * self.paste.rounding(answer, double[0], double[1].paste))

        return DetectionEvidence(
            score_thrs=self._score_thrs(),
            max_per_img=self.cfg.get('max_per_img'),
            nms_calls=calls,
            scale=tuple(map(float, scale)) if in_image_pixels else (1.0, 1.0),
            float64=lambda: None if (double := float64()) is None else double[0],
            rejected=next((item.count for item in reversed(self.rejected) if item.count is not None), None),
            mask_undecided=self.paste.undecided() if pasted else None,
            mask_rounded=rounded if pasted else None,
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
    with RewriteContext(recorder.recorders):
        yield recorder
