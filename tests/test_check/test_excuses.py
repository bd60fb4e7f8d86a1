"""Every rule that excuses a detection: where it does, and where it must not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mmdeploy_lite.check import Comparison, DetectionEvidence, Detections, NmsCall, Tolerance, compare_detections

SIZE = (400, 400)
A, NEAR_A, FAR = [0, 0, 100, 100], [5, 0, 105, 100], [300, 300, 380, 390]
LONE = [[20 * i, 200, 20 * i + 15, 230] for i in range(12)]
Build = Callable[..., Any]


def check(ref: Detections, out: Detections, evidence: DetectionEvidence | None, **tol: float) -> Comparison:
    """Compare, and see that nothing is excused without evidence."""
    assert compare_detections(ref, out, SIZE).verdict == 'unequal'
    assert compare_detections(ref, out, SIZE, evidence=DetectionEvidence()).verdict == 'unequal'
    return compare_detections(ref, out, SIZE, Tolerance(**tol), evidence)


class TestScoreThreshold:
    evidence = DetectionEvidence(score_thrs=(0.3,))

    def test_at_the_threshold(self, dets: Build) -> None:
        result = check(dets([A, FAR], [0.9, 0.30005]), dets([A], [0.9]), self.evidence)
        assert result.equal and result.unmatched_ref == [] and len(result.excused) == 1
        assert result.excused[0].reason == 'its score is at the threshold 0.3'
        result = check(dets([A], [0.9]), dets([A, FAR], [0.9, 0.30005]), self.evidence)
        assert result.equal and result.excused[0].side == 'backend'

    def test_above_the_threshold(self, dets: Build) -> None:
        assert check(dets([A, FAR], [0.9, 0.3002]), dets([A], [0.9]), self.evidence).verdict == 'unequal'
        assert check(dets([A], [0.9]), dets([A, FAR], [0.9, 0.3002]), self.evidence).verdict == 'unequal'

    def test_a_box_that_moved_is_no_tie(self, dets: Build) -> None:
        moved = [value + 1 for value in FAR]
        result = check(dets([A, FAR], [0.9, 0.30005]), dets([A, moved], [0.9, 0.30005]), self.evidence)
        assert result.verdict == 'unequal' and not result.excused
        # Of another label, it is another detection.
        out = dets([A, moved], [0.9, 0.30005], [0, 1])
        assert check(dets([A, FAR], [0.9, 0.30005]), out, self.evidence).equal

    def test_what_nms_removes_may_not_come_back_at_the_threshold(self, scene: Build) -> None:
        case = scene([A, NEAR_A], [0.9, 0.30005], score_thr=0.3)
        ref = case.run()
        out = replace(case, iou_threshold=1.0).run()
        assert (len(ref), len(out)) == (1, 2)
        assert check(ref, out, case.evidence).verdict == 'unequal'

    def test_what_nms_would_remove_may_not_come_in_at_the_threshold(self, scene: Build, dets: Build) -> None:
        """In PyTorch it is below the threshold, so NMS never saw it."""
        case = scene([A, NEAR_A], [0.9, 0.29998], score_thr=0.3)
        assert check(case.run(), dets([A, NEAR_A], [0.9, 0.30002]), case.evidence).verdict == 'unequal'
        case = scene([A, FAR], [0.9, 0.29998], score_thr=0.3)
        assert check(case.run(), dets([A, FAR], [0.9, 0.30002]), case.evidence).equal

    def test_what_passed_in_pytorch_is_not_the_thresholds_doing(self, scene: Build, dets: Build) -> None:
        """The half-overlapping box may go, and then the next in line enters: not the one after it, at the threshold."""
        half = [33.34, 0, 133.34, 100]
        case = scene([A, half, *LONE[:2]], [0.9, 0.8, 0.31, 0.30005], score_thr=0.3, cap=2)
        ref = case.run()
        assert check(ref, dets([A, LONE[0]], [0.9, 0.31]), case.evidence).equal
        assert check(ref, dets([A, LONE[1]], [0.9, 0.30005]), case.evidence).verdict == 'unequal'

    def test_cut_of_the_nms_call(self, dets: Build) -> None:
        boxes = np.array([A, FAR], np.float32)
        call = NmsCall(boxes, np.array([0.9, 0.25001], np.float32), np.zeros(2, np.int64), 0.5, score_cuts=(0.25,))
        result = check(dets([A, FAR], [0.9, 0.25001]), dets([A], [0.9]), DetectionEvidence(nms_calls=[call]))
        assert result.equal and '0.25' in result.excused[0].reason


class TestNms:
    def test_equal_scores_swap(self, scene: Build, dets: Build) -> None:
        case = scene([A, NEAR_A, FAR], [0.5, 0.5, 0.4])
        result = check(case.run(), dets([NEAR_A, FAR], [0.5, 0.4]), case.evidence)
        assert result.equal and [item.side for item in result.excused] == ['reference', 'backend']
        assert all('undecided in NMS' in item.reason for item in result.excused)

    def test_clearly_lower_one_may_not_win(self, scene: Build, dets: Build) -> None:
        case = scene([A, NEAR_A, FAR], [0.5003, 0.5, 0.4])
        assert check(case.run(), dets([NEAR_A, FAR], [0.5, 0.4]), case.evidence).verdict == 'unequal'

    def test_a_lower_one_near_the_threshold_is_no_excuse(self, scene: Build, dets: Build) -> None:
        """The higher one is kept for sure, whatever the lower one does."""
        half = [33.34, 0, 133.34, 100]
        case = scene([A, half], [0.5, 0.49985])
        ref = case.run()
        assert len(ref) == 2
        assert check(ref, dets([half], [0.49985]), case.evidence).verdict == 'unequal'
        assert check(ref, dets([A], [0.5]), case.evidence).equal

    def test_one_of_them_must_be_there(self, scene: Build, dets: Build) -> None:
        case = scene([A, NEAR_A, FAR], [0.5, 0.5, 0.4])
        assert check(case.run(), dets([FAR], [0.4]), case.evidence).verdict == 'unequal'

    def test_both_of_them_may_not(self, scene: Build, dets: Build) -> None:
        case = scene([A, NEAR_A, FAR], [0.5, 0.5, 0.4])
        out = dets([A, NEAR_A, FAR], [0.5, 0.5, 0.4])
        assert check(case.run(), out, case.evidence).verdict == 'unequal'

    def test_the_other_one_must_be_a_candidate(self, scene: Build, dets: Build) -> None:
        """A moved box: the one that left hangs in NMS, the one that came was never there."""
        case = scene([A, NEAR_A, FAR], [0.5, 0.5, 0.4])
        out = dets([[7, 0, 107, 100], FAR], [0.5, 0.4])
        result = check(case.run(), out, case.evidence)
        assert result.verdict == 'unequal' and len(result.unmatched_out) == 1

    def test_a_candidate_stands_for_one_box(self, scene: Build, dets: Build) -> None:
        case = scene([A, [100 / 3, 0, 100 + 100 / 3, 100]], [0.9, 0.5])
        ref = case.run()
        half = case.boxes[1]
        assert check(dets([A], [0.9]), dets([A, half], [0.9, 0.5]), case.evidence).equal
        assert check(ref, dets([A, half, half], [0.9, 0.5, 0.5]), case.evidence).verdict == 'unequal'

    def test_iou_at_the_threshold(self, scene: Build, dets: Build) -> None:
        case = scene([A, [33.33, 0, 133.33, 100]], [0.9, 0.5])
        assert len(case.run()) == 1
        assert check(case.run(), dets(case.boxes, [0.9, 0.5]), case.evidence).equal
        # At IoU 0.6 it is no question.
        case = scene([A, [25, 0, 125, 100]], [0.9, 0.5])
        assert len(case.run()) == 1
        assert check(case.run(), dets(case.boxes, [0.9, 0.5]), case.evidence).verdict == 'unequal'

    def test_other_class_is_no_rival(self, scene: Build, dets: Build) -> None:
        case = scene([A, NEAR_A], [0.5, 0.5], [0, 1])
        assert check(case.run(), dets([NEAR_A], [0.5], [1]), case.evidence).verdict == 'unequal'
        case = scene([A, NEAR_A], [0.5, 0.5], [0, 1], class_agnostic=True)
        assert check(case.run(), dets([NEAR_A], [0.5], [1]), case.evidence).equal

    def test_boxes_of_the_record_are_scaled(self, scene: Build, dets: Build) -> None:
        case = scene([A, NEAR_A, FAR], [0.5, 0.5, 0.4])
        ref, out = case.run(), dets([NEAR_A, FAR], [0.5, 0.4])
        case.evidence.nms_calls[0].boxes *= np.array([2, 3, 2, 3], np.float32)
        assert check(ref, out, case.evidence).verdict == 'unequal'
        case.evidence.scale = (2, 3)
        assert check(ref, out, case.evidence).equal

    def test_only_the_last_call_counts(self, scene: Build, dets: Build) -> None:
        case = scene([A, NEAR_A, FAR], [0.5, 0.5, 0.4])
        ref, out = case.run(), dets([NEAR_A, FAR], [0.5, 0.4])
        last = scene([A, FAR], [0.5, 0.4])
        last.run()
        calls = case.evidence.nms_calls + last.evidence.nms_calls
        assert check(ref, out, DetectionEvidence(nms_calls=calls)).verdict == 'unequal'
        assert check(ref, out, DetectionEvidence(nms_calls=calls[::-1])).equal


class TestCap:
    """The K-th place."""

    def test_equal_scores_swap(self, scene: Build, dets: Build) -> None:
        case = scene(LONE[:4], [0.9, 0.5, 0.5, 0.3], cap=2)
        result = check(case.run(), dets([LONE[0], LONE[2]], [0.9, 0.5]), case.evidence)
        assert result.equal and all('K-th place' in item.reason for item in result.excused)

    def test_lower_scores_do_not(self, scene: Build, dets: Build) -> None:
        case = scene(LONE[:4], [0.9, 0.5, 0.4997, 0.3], cap=2)
        out = dets([LONE[0], LONE[2]], [0.9, 0.4997])
        assert check(case.run(), out, case.evidence).verdict == 'unequal'

    def test_nothing_is_dropped_without_replacement(self, scene: Build, dets: Build) -> None:
        case = scene(LONE[:4], [0.9, 0.5, 0.5, 0.3], cap=2)
        assert check(case.run(), dets(LONE[:1], [0.9]), case.evidence).verdict == 'unequal'

    def test_nothing_is_added(self, scene: Build, dets: Build) -> None:
        case = scene(LONE[:4], [0.9, 0.5, 0.5, 0.3], cap=2)
        assert check(case.run(), dets(LONE[:3], [0.9, 0.5, 0.5]), case.evidence).verdict == 'unequal'

    def test_no_swap_below_the_cap(self, scene: Build, dets: Build) -> None:
        case = scene(LONE[:2], [0.9, 0.5], cap=3)
        assert check(case.run(), dets([LONE[0], LONE[2]], [0.9, 0.5]), case.evidence).verdict == 'unequal'

    def test_replacement_must_be_a_candidate(self, scene: Build, dets: Build) -> None:
        case = scene(LONE[:4], [0.9, 0.5, 0.5, 0.3], cap=2)
        out = dets([LONE[0], LONE[7]], [0.9, 0.5])
        assert check(case.run(), out, case.evidence).verdict == 'unequal'

    def test_replacement_must_survive_nms(self, scene: Build, dets: Build) -> None:
        near = [LONE[0][0] + 1, *LONE[0][1:]]
        case = scene([LONE[0], LONE[1], near], [0.9, 0.5, 0.5], cap=2)
        assert check(case.run(), dets([LONE[0], near], [0.9, 0.5]), case.evidence).verdict == 'unequal'

    def test_replacement_must_not_contradict_nms(self, scene: Build, dets: Build) -> None:
        """Two that exclude each other, in place of one of them and the last one."""
        case = scene([LONE[0], A, NEAR_A, LONE[1]], [0.9, 0.5, 0.5, 0.5], cap=3)
        ref, out = case.run(), dets([LONE[0], A, NEAR_A], [0.9, 0.5, 0.5])
        assert len(ref) == 3
        assert check(ref, out, case.evidence).verdict == 'unequal'

    def test_a_candidate_replaces_once(self, scene: Build, dets: Build) -> None:
        """Without suppression only the record tells a box given out twice from another one of equal score."""
        case = scene(LONE[:4], [0.9, 0.5, 0.5, 0.5], iou_threshold=1.0, cap=3)
        ref = case.run()
        assert check(ref, dets([LONE[0], LONE[1], LONE[3]], [0.9, 0.5, 0.5]), case.evidence).equal
        assert check(ref, dets([LONE[0], LONE[1], LONE[1]], [0.9, 0.5, 0.5]), case.evidence).verdict == 'unequal'

    def test_what_pytorch_dropped_after_nms_may_not_enter(self, scene: Build, dets: Build) -> None:
        """A filter behind NMS took it, not the cap."""
        case = scene([LONE[0], LONE[1], LONE[2]], [0.9, 0.8, 0.5], cap=2)
        case.run()
        ref = dets([LONE[0]], [0.9])
        assert check(ref, dets([LONE[0], LONE[1]], [0.9, 0.8]), case.evidence).verdict == 'unequal'
        ref = dets([LONE[0], LONE[2]], [0.9, 0.5])
        assert check(ref, dets([LONE[0], LONE[1]], [0.9, 0.8]), case.evidence).verdict == 'unequal'

    def test_one_too_many(self, scene: Build, dets: Build) -> None:
        half = [33.33, 0, 133.33, 100]
        case = scene([A, half, LONE[0]], [0.9, 0.8, 0.7], cap=2)
        ref, out = case.run(), dets([A, half, LONE[0]], [0.9, 0.8, 0.7])
        assert len(ref) == 2
        result = check(ref, out, case.evidence)
        assert result.verdict == 'unequal' and 'more than the cap of 2' in result.reasons[0]

    def test_partners_at_the_edge_of_the_tolerance(self, scene: Build, dets: Build) -> None:
        """A partner of the reference is there, even when rescaling took it just too far from PyTorch's candidate."""
        case = scene(LONE[:4], [0.9, 0.5, 0.5, 0.3], cap=2)
        ref = case.run()
        ref.bboxes[0] += 0.03
        out = dets([[value + 0.06 for value in LONE[0]], LONE[2]], [0.9, 0.5])
        assert check(ref, out, case.evidence).equal

    def test_candidates_below_a_later_threshold_are_not_missed(self, scene: Build, dets: Build) -> None:
        """The threshold comes after NMS: what is below it need not fill the room."""
        case = scene(LONE[:3], [0.9, 0.30005, 0.2], cap=2)
        ref = case.run()
        case.evidence.score_thrs = (0.3,)
        assert check(ref, dets(LONE[:1], [0.9]), case.evidence).equal
        case.evidence.score_thrs = ()
        assert check(ref, dets(LONE[:1], [0.9]), case.evidence).verdict == 'unequal'

    def test_without_nms_the_moved_box_is_told_by_label_and_score(self, dets: Build) -> None:
        evidence = DetectionEvidence(max_per_img=2)
        ref = dets(LONE[:2], [0.9, 0.5], [0, 0])
        assert check(ref, dets([LONE[0], LONE[2]], [0.9, 0.5], [0, 1]), evidence).equal
        assert check(ref, dets([LONE[0], LONE[2]], [0.9, 0.5], [0, 0]), evidence).verdict == 'unequal'
        assert check(ref, dets([LONE[0], LONE[2]], [0.9, 0.4998], [0, 1]), evidence).verdict == 'unequal'

    def test_room_made_above_lets_the_next_one_in(self, scene: Build, dets: Build) -> None:
        """A and its neighbour at IoU 0.5 both fit in PyTorch; where one goes, the next in line enters at the end."""
        half = [33.34, 0, 133.34, 100]
        case = scene([A, half, *LONE[:4]], [0.9, 0.8, 0.7, 0.6, 0.5, 0.4], cap=3)
        ref = case.run()
        assert len(ref) == 3 and ref.scores[1] == np.float32(0.8)
        result = check(ref, dets([A, LONE[0], LONE[1]], [0.9, 0.7, 0.6]), case.evidence)
        assert result.equal and ['NMS' in item.reason for item in result.excused] == [True, False]
        # Not the one after the next, not none, and nothing unknown.
        for boxes, scores in (
            ([A, LONE[0], LONE[2]], [0.9, 0.7, 0.5]),
            ([A, LONE[0]], [0.9, 0.7]),
            ([A, LONE[0], LONE[9]], [0.9, 0.7, 0.6]),
        ):
            assert check(ref, dets(boxes, scores), case.evidence).verdict == 'unequal'

    def test_what_comes_in_above_pushes_the_last_one_out(self, scene: Build, dets: Build) -> None:
        half = [33.32, 0, 133.32, 100]
        case = scene([A, half, *LONE[:4]], [0.9, 0.8, 0.7, 0.6, 0.5, 0.4], cap=3)
        ref = case.run()
        assert ref.scores.tolist() == pytest.approx([0.9, 0.7, 0.6])
        result = check(ref, dets([A, half, LONE[0]], [0.9, 0.8, 0.7]), case.evidence)
        assert result.equal and result.excused[0].reason.startswith('K-th place')
        # Only the last one, and only when it is full.
        assert check(ref, dets([A, half, LONE[1]], [0.9, 0.8, 0.6]), case.evidence).verdict == 'unequal'
        assert check(ref, dets([A, half], [0.9, 0.8]), case.evidence).verdict == 'unequal'


class TestFloat64:
    def test_missing_in_float64_too(self, dets: Build) -> None:
        ref, out = dets([A, FAR], [0.9, 0.5]), dets([A], [0.9])
        assert check(ref, out, DetectionEvidence(float64=dets([A], [0.9]))).equal
        assert check(ref, out, DetectionEvidence(float64=dets([A, FAR], [0.9, 0.5]))).verdict == 'unequal'

    def test_present_in_float64_too(self, dets: Build) -> None:
        ref, out = dets([A], [0.9]), dets([A, FAR], [0.9, 0.5])
        result = check(ref, out, DetectionEvidence(float64=lambda: dets([A, FAR], [0.9, 0.5])))
        assert result.equal and 'float64' in result.excused[0].reason
        assert check(ref, out, DetectionEvidence(float64=lambda: dets([A], [0.9]))).verdict == 'unequal'
        assert check(ref, out, DetectionEvidence(float64=lambda: None)).verdict == 'unequal'

    def test_a_box_that_float64_has_once_stands_for_one(self, dets: Build) -> None:
        evidence = DetectionEvidence(float64=dets([A, FAR], [0.9, 0.5]))
        assert check(dets([A], [0.9]), dets([A, FAR, FAR], [0.9, 0.5, 0.5]), evidence).verdict == 'unequal'
        assert check(dets([A], [0.9]), dets([A, A], [0.9, 0.9]), evidence).verdict == 'unequal'

    def test_moved_elsewhere_is_not_excused(self, dets: Build) -> None:
        evidence = DetectionEvidence(float64=dets([A], [0.9]))
        moved = [value + 1 for value in FAR]
        result = check(dets([A, FAR], [0.9, 0.5]), dets([A, moved], [0.9, 0.5]), evidence)
        assert result.verdict == 'unequal' and len(result.unmatched_out) == 1

    def test_room_it_makes_is_filled(self, scene: Build, dets: Build) -> None:
        case = scene(LONE[:4], [0.9, 0.8, 0.7, 0.6], cap=2)
        ref = case.run()
        case.evidence.float64 = dets(LONE[1:2], [0.8])
        result = check(ref, dets(LONE[1:3], [0.8, 0.7]), case.evidence)
        assert result.equal and ['float64' in item.reason for item in result.excused] == [True, False]
        assert check(ref, dets([LONE[1], LONE[3]], [0.8, 0.6]), case.evidence).verdict == 'unequal'

    def test_runs_only_when_needed(self, scene: Build, dets: Build) -> None:
        def never() -> Detections:
            raise AssertionError('the float64 run was not needed')

        ref = dets([A, FAR], [0.9, 0.30005])
        evidence = DetectionEvidence(score_thrs=(0.3,), float64=never)
        assert compare_detections(ref, ref, SIZE, evidence=evidence).equal
        assert compare_detections(ref, dets([A], [0.9]), SIZE, evidence=evidence).equal
        with pytest.raises(AssertionError, match='not needed'):
            compare_detections(ref, dets([FAR], [0.30005]), SIZE, evidence=evidence)


class TestMoved:
    """What PyTorch answers to an image that is moved by less than a rounding."""

    def test_missing_and_present(self, dets: Build) -> None:
        ref, out = dets([A, LONE[1]], [0.9, 0.5]), dets([A, FAR], [0.9, 0.5])
        evidence = DetectionEvidence(moved=lambda: iter([ref, dets([A, FAR], [0.9, 0.5])]))
        result = check(ref, out, evidence)
        assert result.equal and all('less than a rounding is moved' in item.reason for item in result.excused)
        assert check(ref, out, DetectionEvidence(moved=lambda: [ref, ref])).verdict == 'unequal'
        assert check(ref, out, DetectionEvidence(moved=lambda: [dets([A], [0.9])])).verdict == 'unequal'

    def test_a_box_that_each_answer_has_once_stands_for_one(self, dets: Build) -> None:
        evidence = DetectionEvidence(moved=lambda: [dets([A, FAR], [0.9, 0.5])] * 3)
        assert check(dets([A], [0.9]), dets([A, FAR], [0.9, 0.5]), evidence).equal
        assert check(dets([A], [0.9]), dets([A, FAR, FAR], [0.9, 0.5, 0.5]), evidence).verdict == 'unequal'

    def test_runs_only_as_long_as_needed(self, dets: Build) -> None:
        def answers() -> Iterator[Detections]:
            yield dets([A], [0.9])
            raise AssertionError('the second run was not needed')

        ref, evidence = dets([A, FAR], [0.9, 0.5]), DetectionEvidence(float64=dets([A, FAR], [0.9, 0.5]), moved=answers)
        assert compare_detections(ref, ref, SIZE, evidence=evidence).equal
        assert check(ref, dets([A], [0.9]), evidence).equal
        with pytest.raises(AssertionError, match='not needed'):
            check(ref, dets([FAR], [0.5]), evidence)


class TestShare:
    """More than one place and more than 5 % of the reference: the image decides nothing."""

    def ref_and_out(self, dets: Build, count: int, excused: int) -> tuple[Detections, Detections]:
        scores = [0.9] * (count - excused) + [0.30005] * excused
        boxes = [[5 * i, 0, 5 * i + 4, 9] for i in range(count)]
        return dets(boxes, scores), dets(boxes[: count - excused], scores[: count - excused])

    @pytest.mark.parametrize(
        ('count', 'excused', 'verdict'),
        [(1, 1, 'equal'), (10, 1, 'equal'), (10, 2, 'undecidable'), (40, 2, 'equal'), (39, 2, 'undecidable')],
    )
    def test_share(self, dets: Build, count: int, excused: int, verdict: str) -> None:
        ref, out = self.ref_and_out(dets, count, excused)
        result = check(ref, out, DetectionEvidence(score_thrs=(0.3,)))
        assert result.verdict == verdict and len(result.excused) == excused
        assert (verdict == 'undecidable') == bool(result.reasons)

    def test_share_can_be_loosened(self, dets: Build) -> None:
        ref, out = self.ref_and_out(dets, 10, 5)
        assert check(ref, out, DetectionEvidence(score_thrs=(0.3,)), undecidable_share=0.5).equal

    def test_a_swap_is_one_place(self, scene: Build, dets: Build) -> None:
        case = scene(LONE[:4], [0.9, 0.5, 0.5, 0.3], cap=2)
        result = check(case.run(), dets([LONE[0], LONE[2]], [0.9, 0.5]), case.evidence)
        assert len(result.excused) == 2 and result.equal

    def test_unequal_wins(self, dets: Build) -> None:
        ref, out = self.ref_and_out(dets, 10, 5)
        out.bboxes[0] += 1
        assert check(ref, out, DetectionEvidence(score_thrs=(0.3,))).verdict == 'unequal'


def test_a_record_of_something_else_excuses_nothing(scene: Build, dets: Build) -> None:
    """Boxes that are refined after NMS are not in its record."""
    case = scene([A, NEAR_A, FAR], [0.5, 0.5, 0.4])
    case.run()
    ref, out = dets([[1, 1, 90, 90], FAR], [0.5, 0.4]), dets([NEAR_A, FAR], [0.5, 0.4])
    assert check(ref, out, case.evidence).verdict == 'unequal'


def test_malformed_evidence_is_an_error(dets: Build) -> None:
    call = NmsCall(np.zeros((2, 4), np.float32), np.zeros(1, np.float32), np.zeros(2, np.int64), 0.5)
    with pytest.raises(ValueError, match='an NMS call needs'):
        compare_detections(dets([A], [0.9]), dets([], []), SIZE, evidence=DetectionEvidence(nms_calls=[call]))
