from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mmdeploy_lite.check import DetectionEvidence, Detections, Tolerance, compare_detections

SIZE = (200, 300)
A, B, C = [10, 10, 50, 60], [100, 20, 150, 90], [200, 100, 280, 180]
Build = Callable[..., Detections]


def shifted(box: list, by: float) -> list:
    return [value + by for value in box]


def masks_of(*squares: tuple[int, int]) -> np.ndarray:
    masks = np.zeros((len(squares), *SIZE), bool)
    for mask, (x, y) in zip(masks, squares, strict=True):
        mask[y : y + 20, x : x + 20] = True
    return masks


def test_equal_answers_in_any_order(dets: Build) -> None:
    ref = dets([A, B, C], [0.9, 0.5, 0.5], [0, 1, 1])
    result = compare_detections(ref, dets([C, A, B], [0.5, 0.9, 0.5], [1, 0, 1]), SIZE)
    assert result.equal and result.reasons == []
    assert (result.ref_count, result.out_count, result.matched) == (3, 3, 3)
    assert result.worst_box_diff == result.worst_score_diff == 0


def test_nothing_equals_nothing(dets: Build) -> None:
    assert compare_detections(Detections.empty(), Detections.empty(), SIZE).equal
    result = compare_detections(Detections.empty(), dets([A], [0.9]), SIZE)
    assert result.verdict == 'unequal' and len(result.unmatched_out) == 1
    result = compare_detections(dets([A], [0.9]), Detections.empty(), SIZE)
    assert result.verdict == 'unequal' and len(result.unmatched_ref) == 1


@pytest.mark.parametrize(('by', 'verdict'), [(0.9e-4, 'equal'), (1.1e-4, 'unequal')])
def test_score_tolerance(dets: Build, by: float, verdict: str) -> None:
    result = compare_detections(dets([A, B], [0.9, 0.5]), dets([A, B], [0.9, 0.5 + by]), SIZE)
    assert result.verdict == verdict
    assert verdict == 'unequal' or result.worst_score_diff == pytest.approx(by, rel=1e-2)


@pytest.mark.parametrize(
    ('size', 'by', 'verdict'),
    [(SIZE, 0.045, 'equal'), (SIZE, 0.055, 'unequal'), ((900, 1000), 0.09, 'equal'), ((900, 1000), 0.11, 'unequal')],
)
@pytest.mark.parametrize('side', [0, 1, 2, 3])
def test_box_tolerance(dets: Build, size: tuple, by: float, verdict: str, side: int) -> None:
    moved = list(B)
    moved[side] += by
    result = compare_detections(dets([A, B], [0.9, 0.5]), dets([A, moved], [0.9, 0.5]), size)
    assert result.verdict == verdict
    assert verdict == 'unequal' or result.worst_box_diff == pytest.approx(by, abs=1e-4)


@pytest.mark.parametrize(
    ('boxes', 'scores', 'labels', 'says'),
    [
        ([A, shifted(B, 1)], [0.9, 0.5], [0, 1], 'a box 1.00 px away'),
        ([A, B], [0.9, 0.6], [0, 1], 'score 0.6000'),
        ([A, B], [0.9, 0.5], [0, 2], 'label 2'),
        ([A, C], [0.9, 0.6], [0, 2], 'nothing like it'),
        ([A], [0.9], [0], 'nothing left to match'),
    ],
)
def test_what_is_wrong_is_said(dets: Build, boxes: list, scores: list, labels: list, says: str) -> None:
    result = compare_detections(dets([A, B], [0.9, 0.5], [0, 1]), dets(boxes, scores, labels), SIZE)
    assert result.verdict == 'unequal'
    (item,) = result.unmatched_ref
    assert (item.side, item.index, item.label, item.box) == ('reference', 1, 1, tuple(B))
    assert 'label 1 score 0.5000' in item.reason and says in item.reason
    assert says in result.reasons[0]


def test_a_duplicate_is_not_equal(dets: Build) -> None:
    result = compare_detections(dets([A, B], [0.9, 0.5]), dets([A, B, B], [0.9, 0.5, 0.5]), SIZE)
    assert result.verdict == 'unequal' and len(result.unmatched_out) == 1 and not result.unmatched_ref


def test_crowded_scores_need_the_largest_matching(dets: Build) -> None:
    """The closest partner of the first is the only partner of the second."""
    ref = dets([A, A], [0.5, 0.5 + 1.2e-4])
    out = dets([A, A], [0.5 - 0.8e-4, 0.5 + 0.4e-4])
    assert compare_detections(ref, out, SIZE).equal


def test_three_hundred_equal_ones_are_fast(dets: Build) -> None:
    many = dets([A] * 300, [0.5] * 300)
    start = time.process_time()
    assert compare_detections(many, many, SIZE).equal
    assert compare_detections(many, dets([A] * 200, [0.5] * 200), SIZE).verdict == 'unequal'
    assert time.process_time() - start < 3


def test_loosened_tolerance_is_used(dets: Build) -> None:
    ref, out = dets([A], [0.9]), dets([shifted(A, 0.3)], [0.8995])
    assert compare_detections(ref, out, SIZE).verdict == 'unequal'
    assert compare_detections(ref, out, SIZE, Tolerance(score=1e-3, box_px=0.5)).equal


@pytest.mark.parametrize(
    ('change', 'says'),
    [
        (dict(scores=np.array([0.9, np.nan], np.float32)), 'not finite'),
        (dict(bboxes=np.array([A, [0, 0, np.inf, 1]], np.float32)), 'not finite'),
        (dict(labels=np.array([0, 5])), 'labels must lie in 0..2, got 5'),
        (dict(labels=np.array([0, -1])), 'labels must lie in 0..2, got -1'),
        (dict(labels=np.array([0.0, 1.0])), 'labels must be integer'),
        (dict(bboxes=np.zeros((2, 5), np.float32)), 'bboxes must have shape'),
        (dict(scores=np.float32(0.5)), 'scores must be a numpy array'),
        (dict(masks=np.zeros((2, *SIZE), bool)), 'the backend answers masks and PyTorch does not'),
    ],
)
def test_malformed_answers_are_unequal(dets: Build, change: dict, says: str) -> None:
    good = dets([A, B], [0.9, 0.5], [0, 1])
    result = compare_detections(good, replace(good, **change), SIZE, num_classes=3)
    assert result.verdict == 'unequal' and 'the backend' in result.reasons[0] and says in result.reasons[0]
    result = compare_detections(replace(good, **change), good, SIZE, num_classes=3)
    assert result.verdict == 'unequal' and 'PyTorch' in result.reasons[0]


class TestMasks:
    def test_equal(self, dets: Build) -> None:
        ref = dets([A, B], [0.9, 0.5], masks=masks_of((10, 10), (100, 20)))
        out = dets([B, A], [0.5, 0.9], masks=masks_of((100, 20), (10, 10)))
        result = compare_detections(ref, out, SIZE)
        assert result.equal and result.has_masks and result.clear_pixels == result.excused_pixels == 0

    def test_one_pixel_is_unequal(self, dets: Build) -> None:
        ref = dets([A, B], [0.9, 0.5], masks=masks_of((10, 10), (100, 20)))
        out = dets([A, B], [0.9, 0.5], masks=masks_of((10, 10), (100, 20)))
        out.masks[1, 199, 299] = True
        result = compare_detections(ref, out, SIZE)
        assert result.verdict == 'unequal' and result.clear_pixels == 1
        assert result.worst_mask_share == pytest.approx(1 / 401)
        assert result.reasons == ['1 mask pixels differ where PyTorch is sure']

    def test_an_undecided_pixel_may_differ(self, dets: Build) -> None:
        ref = dets([A, B], [0.9, 0.5], masks=masks_of((10, 10), (100, 20)))
        out = dets([A, B], [0.9, 0.5], masks=masks_of((10, 10), (100, 20)))
        out.masks[1, 20, 100] = False
        undecided = np.zeros_like(ref.masks)
        undecided[1, 20, 100] = True
        result = compare_detections(ref, out, SIZE, evidence=DetectionEvidence(mask_undecided=undecided))
        assert result.equal and result.excused_pixels == 1
        # The same pixel of the other detection's mask is no excuse.
        evidence = DetectionEvidence(mask_undecided=undecided[::-1].copy())
        assert compare_detections(ref, out, SIZE, evidence=evidence).verdict == 'unequal'

    def test_rounding_that_float64_shows_is_asked_for_once_and_only_then(self, dets: Build) -> None:
        ref = dets([A, B], [0.9, 0.5], masks=masks_of((10, 10), (100, 20)))
        out = dets([A, B], [0.9, 0.5], masks=masks_of((10, 10), (100, 20)))
        rounded, asked = np.zeros_like(ref.masks), []
        rounded[1, 20, 100] = True
        evidence = DetectionEvidence(mask_rounded=lambda: asked.append(1) or rounded)
        assert compare_detections(ref, out, SIZE, evidence=evidence).equal and not asked
        out.masks[1, 20, 100] = False
        result = compare_detections(ref, out, SIZE, evidence=evidence)
        assert result.equal and (result.clear_pixels, result.excused_pixels) == (0, 1) and len(asked) == 1
        out.masks[1, 20, 101] = False
        result = compare_detections(ref, out, SIZE, evidence=evidence)
        assert result.verdict == 'unequal' and (result.clear_pixels, result.excused_pixels) == (1, 1)
        evidence = DetectionEvidence(mask_rounded=lambda: None)  # the model cannot run in float64
        assert compare_detections(ref, out, SIZE, evidence=evidence).clear_pixels == 2

    def test_a_pixel_that_pytorch_itself_answers_otherwise(self, dets: Build) -> None:
        ref, out, moved = (dets([A, B], [0.9, 0.5], masks=masks_of((10, 10), (100, 20))) for _ in range(3))
        moved.masks[1, 20, 100] = False
        asked = []
        evidence = DetectionEvidence(moved=lambda: asked.append(1) or iter([ref, moved]))
        assert compare_detections(ref, out, SIZE, evidence=evidence).equal and not asked
        out.masks[1, 20, 100] = False
        result = compare_detections(ref, out, SIZE, evidence=evidence)
        assert result.equal and (result.clear_pixels, result.excused_pixels) == (0, 1) and asked
        # neither another pixel nor the same one of another detection
        out.masks[1, 20, 101] = out.masks[0, 20, 100] = False
        out.masks[0, 12, 12] = False
        result = compare_detections(ref, out, SIZE, evidence=evidence)
        assert result.verdict == 'unequal' and result.excused_pixels == 1

    def test_another_detection_with_the_same_box_says_nothing_of_a_mask(self, dets: Build) -> None:
        ref, out = (dets([A, A], [0.9, 0.9], masks=masks_of((10, 10), (100, 20))) for _ in range(2))
        swapped = dets([A, A], [0.9, 0.9], masks=masks_of((100, 20), (10, 10)))
        out.masks[1, 20, 100] = out.masks[0, 12, 12] = False
        evidence = DetectionEvidence(moved=lambda: [swapped])
        assert compare_detections(ref, out, SIZE, evidence=evidence).clear_pixels == 2

    def test_too_many_undecided_pixels(self, dets: Build) -> None:
        ref, out = (dets([A], [0.9], masks=masks_of((10, 10))) for _ in range(2))
        out.masks[0, 10:12, 10:25] = False
        evidence = DetectionEvidence(mask_undecided=np.ones_like(ref.masks))
        result = compare_detections(ref, out, SIZE, evidence=evidence)
        assert result.verdict == 'undecidable' and '30 mask pixels of 400' in result.reasons[0]
        out.masks[0, 10:11, 10:29] = True
        out.masks[0, 11, 10:25] = True
        out.masks[0, 10, 10:25] = False
        assert compare_detections(ref, out, SIZE, evidence=evidence).equal

    def test_pairs_are_chosen_by_mask(self, dets: Build) -> None:
        """Two detections alike but for their masks, in the other order."""
        ref = dets([A, A], [0.5, 0.5], masks=masks_of((10, 10), (30, 40)))
        out = dets([A, A], [0.5, 0.5], masks=masks_of((30, 40), (10, 10)))
        assert compare_detections(ref, out, SIZE).equal
        out = dets([A, A], [0.5, 0.5], masks=masks_of((30, 40), (30, 40)))
        result = compare_detections(ref, out, SIZE)
        assert result.verdict == 'unequal' and result.matched == 2 and result.clear_pixels == 800

    def test_other_size_and_missing(self, dets: Build) -> None:
        ref = dets([A], [0.9], masks=masks_of((10, 10)))
        out = dets([A], [0.9], masks=masks_of((10, 10))[:, :100])
        assert 'the masks are of size (100, 300)' in compare_detections(ref, out, SIZE).reasons[0]
        assert 'PyTorch answers masks' in compare_detections(ref, dets([A], [0.9]), SIZE).reasons[0]

    def test_evidence_of_another_shape_is_refused(self, dets: Build) -> None:
        ref = dets([A], [0.9], masks=masks_of((10, 10)))
        evidence = DetectionEvidence(mask_undecided=np.zeros((2, *SIZE), bool))
        with pytest.raises(ValueError, match='mask_undecided must be bool of shape'):
            compare_detections(ref, ref, SIZE, evidence=evidence)


def test_result_is_plain_json(dets: Build) -> None:
    import json

    result = compare_detections(dets([A, B], [0.9, 0.5]), dets([A], [0.9]), SIZE)
    loaded = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert loaded['verdict'] == 'unequal' and loaded['counts'] == dict(reference=2, backend=1, matched=1)
    assert loaded['unmatched_reference'][0]['box'] == B
