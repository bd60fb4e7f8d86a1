"""Which differences PyTorch itself explains: the rules for ties that change membership.

A detection that one side has and the other does not is excused only by evidence from PyTorch. Every rule asks two
things: that PyTorch is undecided at this place, and that the backend's answer is one that PyTorch could have given.
"""

from __future__ import annotations

import math

import numpy as np

from mmdeploy_lite.check.answers import DetectionEvidence, Detections
from mmdeploy_lite.check.matching import Edges, Matching, find_edges
from mmdeploy_lite.check.nms_ties import Fate, iou_bounds, offset_boxes, offset_rounding, three_valued_nms
from mmdeploy_lite.check.tolerance import Tolerance


class NmsRecord:
    """The NMS call that made the detections, and what is certain about each of its candidates.

    Args:
        evidence: With at least one NMS call.
        score_tol: Tolerance of scores.
        box_tol: Tolerance of box coordinates in the detections' pixels.
    """

    def __init__(self, evidence: DetectionEvidence, score_tol: float, box_tol: float) -> None:
        self.call = evidence.nms_calls[-1]
        self.call.validate()
        self.scale = np.array(evidence.scale * 2, np.float64)
        self.score_tol = score_tol
        self.box_tol = np.abs(self.scale) * box_tol
        pair_tol = (float(self.box_tol[0]), float(self.box_tol[1]))
        self.fates = three_valued_nms(self.call, score_tol, pair_tol)
        rounding = offset_rounding(self.call)
        self._overlap_tol = (pair_tol[0] + rounding, pair_tol[1] + rounding)

    def candidates(self, dets: Detections, rows: np.ndarray) -> Edges:
        """Pairs (row of ``dets``, candidate) that are the same box within tolerance, kept or not."""
        edges = find_edges(
            dets.bboxes[rows] * self.scale,
            dets.scores[rows],
            dets.labels[rows],
            self.call.boxes,
            self.call.scores,
            self.call.idxs,
            self.score_tol,
            self.box_tol,
        )
        return Edges(rows[edges.rows], edges.cols, edges.cost)

    def overlaps(self, box: np.ndarray, label: int, dets: Detections) -> tuple[np.ndarray, np.ndarray]:
        """Whether a detection's IoU with each of ``dets`` is above the threshold: (surely, maybe), each (K,) bool."""
        own = offset_boxes(self.call, (box * self.scale)[None], np.array([label]))[0]
        others = offset_boxes(self.call, dets.bboxes * self.scale, dets.labels)
        low, high = iou_bounds(own, others, self._overlap_tol)
        return low > self.call.iou_threshold, high > self.call.iou_threshold


class Excuses:
    """Finds the unmatched detections that PyTorch itself is undecided about.

    Args:
        ref: PyTorch's detections.
        out: The backend's detections.
        matching: Their matching.
        evidence: What the PyTorch run shows.
        tol: Tolerances.
        box_tol: Tolerance of box coordinates in pixels.

    Attributes:
        ref: Reason for each excused row of the reference.
        out: Reason for each excused row of the backend.
        objections: What the answers as a whole have wrong, although each detection alone is excused.
    """

    def __init__(
        self,
        ref: Detections,
        out: Detections,
        matching: Matching,
        evidence: DetectionEvidence,
        tol: Tolerance,
        box_tol: float,
    ) -> None:
        self.ref: dict[int, str] = {}
        self.out: dict[int, str] = {}
        self.objections: list[str] = []
        self._dets = (ref, out)
        self._matching = matching
        self._evidence = evidence
        self._tol = tol
        self._box_tol = box_tol
        self._left_ref = np.flatnonzero(matching.col_of < 0)
        self._left_out = np.flatnonzero(matching.row_of < 0)
        self._record: NmsRecord | None = None
        last_cuts: tuple[float, ...] = ()
        if evidence.nms_calls:
            self._use_record(NmsRecord(evidence, tol.score, box_tol))
            last_cuts = evidence.nms_calls[-1].score_cuts
        self._cuts = sorted({*evidence.score_thrs, *last_cuts})
        if self._record is not None:
            self._by_nms(self._record)
        self._by_score_threshold()
        if not self._explained():
            self._by_cap()
        if not self._explained():
            self._by_float64()
            self._by_cap()
        if not self._explained():
            self._by_moved()
            self._by_cap()
        self._check_filled()

    def _explained(self) -> bool:
        return len(self.ref) == len(self._left_ref) and len(self.out) == len(self._left_out)

    def _open_ref(self) -> list[int]:
        return [int(row) for row in self._left_ref if int(row) not in self.ref]

    def _open_out(self) -> list[int]:
        return [int(row) for row in self._left_out if int(row) not in self.out]

    def _use_record(self, record: NmsRecord) -> None:
        """Find each detection among the candidates, one to one."""
        ref, out = self._dets
        of_ref = record.candidates(ref, np.arange(len(ref)))
        of_out = record.candidates(out, np.arange(len(out)))
        alive = of_ref.where(record.fates[of_ref.cols] != Fate.SUPPRESSED)
        if len(np.unique(alive.rows)) < len(ref):
            # Labels or boxes are made after this NMS: it says nothing about these detections.
            return
        self._record = record
        self._ref_candidates = _by_row(of_ref)
        self._out_candidates = _by_row(of_out)
        held = Matching(len(out), len(record.fates))
        alive = of_out.where(record.fates[of_out.cols] != Fate.SUPPRESSED)
        # A candidate may not stand for two boxes: those with a partner come first and keep having one.
        held.grow(alive, np.flatnonzero(self._matching.row_of >= 0))
        held.grow(alive, self._left_out)
        self._held = held

    def _by_nms(self, record: NmsRecord) -> None:
        """NMS may keep either of two boxes; the answer must hold one of them, and not both."""
        ref, out = self._dets
        for row in self._left_ref.tolist():
            if not (record.fates[self._ref_candidates[row]] == Fate.UNDECIDED).any():
                continue
            _, maybe = record.overlaps(ref.bboxes[row], int(ref.labels[row]), out)
            # Both scores may be off by the tolerance.
            if (maybe & (out.scores >= ref.scores[row] - 2 * self._tol.score)).any():
                self.ref[row] = 'undecided in NMS: a box that the backend kept may suppress it'
        for row in self._left_out.tolist():
            candidate = self._held.col_of[row]
            if candidate >= 0 and record.fates[candidate] == Fate.UNDECIDED and not self._contradicts_nms(row):
                self.out[row] = 'undecided in NMS: PyTorch has this candidate and may as well keep it'

    def _contradicts_nms(self, row: int) -> bool:
        """No NMS returns this detection of the backend: another one it returned overlaps it too much."""
        if self._record is None:
            return False
        out = self._dets[1]
        surely, _ = self._record.overlaps(out.bboxes[row], int(out.labels[row]), out)
        surely[row] = False
        return bool(surely.any())

    def _by_score_threshold(self) -> None:
        """A score within tolerance of a threshold passes it or not."""
        ref, out = self._dets
        found_ref = {row: cut for row in self._open_ref() if (cut := self._cut_near(ref.scores[row])) is not None}
        found_out = {
            row: cut
            for row in self._open_out()
            if (cut := self._cut_near(out.scores[row])) is not None
            and not self._contradicts_nms(row)
            and not self._passed_in_pytorch(row)
        }
        self._drop_moved(found_ref, found_out)
        self.ref.update({row: f'its score is at the threshold {cut:g}' for row, cut in found_ref.items()})
        self.out.update({row: f'its score is at the threshold {cut:g}' for row, cut in found_out.items()})

    def _cut_near(self, score: float) -> float | None:
        return next((cut for cut in self._cuts if abs(float(score) - cut) <= self._tol.score), None)

    def _passed_in_pytorch(self, row: int) -> bool:
        """PyTorch has it as a candidate above the threshold: the threshold is not why it is missing."""
        if self._record is None:
            return False
        scores = self._record.call.scores[self._out_candidates.get(row, [])]
        near = self._cut_near(self._dets[1].scores[row])
        return bool((scores > near).any())

    def _drop_moved(self, found_ref: dict[int, float], found_out: dict[int, float]) -> None:
        """Take back what could as well be one box at another place: same label and score on both sides."""
        ref, out = self._dets
        for row in self._left_ref.tolist():
            twins = [
                other
                for other in found_out
                if out.labels[other] == ref.labels[row] and abs(out.scores[other] - ref.scores[row]) <= self._tol.score
            ]
            for other in twins:
                found_out.pop(other)
                found_ref.pop(row, None)

    def _by_cap(self) -> None:
        """At the K-th place equal scores swap, and what is excused elsewhere makes or takes room at the end.

        The cap explains that a detection of the reference is missing when the backend answers K, none of which scores
        lower. It explains that PyTorch does not have one of the backend's when PyTorch answers K, none of which scores
        lower, and it was the next in line: it survives PyTorch's NMS, and no higher one that surely survives is
        missing. Without an NMS call to look that up, its score must be at the lowest that PyTorch kept.
        """
        ref, out = self._dets
        cap, tol = self._evidence.max_per_img, self._tol.score
        if cap is None or len(out) != cap or not cap:
            return
        lowest_out = float(out.scores.min())
        found_ref = {row: cap for row in self._open_ref() if float(ref.scores[row]) <= lowest_out + tol}
        found_out = {}
        if len(ref) == cap:
            lowest_ref = float(ref.scores.min())
            floor = lowest_ref - tol if self._record is None else self._highest_missing() - tol
            found_out = {
                row: cap
                for row in self._open_out()
                if floor <= float(out.scores[row]) <= lowest_ref + tol and self._survives(row)
            }
        if self._record is None:
            self._drop_moved(found_ref, found_out)
        self.ref.update(dict.fromkeys(found_ref, f'K-th place: the backend answers {cap}, none of lower score'))
        self.out.update(dict.fromkeys(found_out, f'K-th place: next in line in PyTorch, which answers {cap}'))

    def _survives(self, row: int) -> bool:
        """PyTorch's own candidates hold this detection of the backend, and its NMS does not remove it for sure."""
        return self._record is None or (self._held.col_of[row] >= 0 and not self._contradicts_nms(row))

    def _highest_missing(self) -> float:
        """Highest score among the candidates that NMS surely keeps and the backend lacks; -inf without any."""
        assert self._record is not None
        missing = (self._record.fates == Fate.KEPT) & (self._held.row_of < 0)
        # A partner or an excuse says where a detection of the reference is.
        for row in [*self.ref, *np.flatnonzero(self._matching.col_of >= 0).tolist()]:
            missing[self._ref_candidates[row]] = False
        for cut in self._cuts:
            missing &= self._record.call.scores > cut + self._tol.score
        return float(self._record.call.scores[missing].max(initial=-math.inf))

    def _by_float64(self) -> None:
        """The same model in double precision disagrees with itself at this place."""
        double = self._evidence.float64_answer()
        if double is not None:
            self._by_other_answer(double, 'in float64')

    def _by_moved(self) -> None:
        """The same model answers otherwise at this place where less than a rounding of image or weights is moved."""
        for moved in self._evidence.moved() if self._evidence.moved is not None else ():
            self._by_other_answer(moved, 'where less than a rounding is moved')
            if self._explained():
                break

    def _by_other_answer(self, other: Detections, how: str) -> None:
        """PyTorch has another answer, without a detection that only the reference has, or with one of the backend's."""
        other.validate()
        ref, out = self._dets
        confirmed = set(self._edges(ref, other).rows.tolist())
        for row in self._open_ref():
            if row not in confirmed:
                self.ref[row] = f'PyTorch {how} does not have it either'
        edges = self._edges(out, other)
        assignment = Matching(len(out), len(other))
        assignment.grow(edges, np.flatnonzero(self._matching.row_of >= 0))
        assignment.grow(edges, [*self.out])  # what one answer excused holds its place in the next
        assignment.grow(edges, self._open_out())
        for row in self._open_out():
            if assignment.col_of[row] >= 0:
                self.out[row] = f'PyTorch {how} has it too'

    def _edges(self, a: Detections, b: Detections) -> Edges:
        return find_edges(
            a.bboxes, a.scores, a.labels, b.bboxes, b.scores, b.labels, self._tol.score, np.full(4, self._box_tol)
        )

    def _check_filled(self) -> None:
        """With room left below the cap, every candidate that NMS keeps for sure must be there."""
        ref, out = self._dets
        cap = self._evidence.max_per_img
        if cap is not None and len(out) > cap:
            self.objections.append(f'the backend answers {len(out)} detections, more than the cap of {cap}')
        if self._record is not None and len(ref) == cap and len(out) < len(ref):
            score = self._highest_missing()
            if math.isfinite(score):
                self.objections.append(
                    f'the backend answers {len(out)} detections of {cap} and lacks one of score {score:.4f} that NMS '
                    'in PyTorch surely keeps'
                )


def _by_row(edges: Edges) -> dict[int, list[int]]:
    """The columns of each row."""
    found: dict[int, list[int]] = {}
    for row, col in zip(edges.rows.tolist(), edges.cols.tolist(), strict=True):
        found.setdefault(row, []).append(col)
    return found
