from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdeploy_lite.check import NmsCall
from mmdeploy_lite.check.nms_ties import Fate, iou_bounds, offset_boxes, offset_rounding, three_valued_nms

S, U, K = Fate.SUPPRESSED, Fate.UNDECIDED, Fate.KEPT
TOL = 1e-4


def call(boxes: list, scores: list, idxs: list | None = None, threshold: float = 0.5, **rest: object) -> NmsCall:
    idxs = [0] * len(scores) if idxs is None else idxs
    return NmsCall(
        np.array(boxes, np.float64).reshape(-1, 4),
        np.array(scores, np.float64),
        np.array(idxs, np.int64),
        threshold,
        **rest,
    )


def fates(*args: object, box_tol: float = 0.05, **kwargs: object) -> list[int]:
    return three_valued_nms(call(*args, **kwargs), TOL, (box_tol, box_tol)).tolist()


def plain_nms(boxes: np.ndarray, scores: np.ndarray, idxs: np.ndarray, threshold: float) -> set[int]:
    """Textbook NMS, written apart from the code under test."""
    kept: list[int] = []
    for i in sorted(range(len(scores)), key=lambda i: -scores[i]):
        for j in kept:
            if idxs[i] == idxs[j] and plain_iou(boxes[i], boxes[j]) > threshold:
                break
        else:
            kept.append(i)
    return set(kept)


def plain_iou(a: np.ndarray, b: np.ndarray) -> float:
    w = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    h = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - w * h
    return w * h / union if union else 0.0


A = [0, 0, 100, 100]
NEAR_A = [5, 0, 105, 100]
FAR = [300, 300, 400, 400]
# IoU with A is exactly 1/2: it overlaps 2/3 of the width.
HALF_A = [100 / 3, 0, 100 + 100 / 3, 100]


@pytest.mark.parametrize(
    ('boxes', 'scores', 'expected'),
    [
        ([], [], []),
        ([A, FAR], [0.9, 0.9], [K, K]),
        ([A, NEAR_A], [0.9, 0.5], [K, S]),
        ([A, NEAR_A], [0.5, 0.9], [S, K]),
        # Equal scores: either may win.
        ([A, NEAR_A], [0.9, 0.9], [U, U]),
        ([A, NEAR_A], [0.9, 0.9 - 0.9 * TOL], [U, U]),
        ([A, NEAR_A], [0.9, 0.9 - 1.1 * TOL], [K, S]),
        # An IoU at the threshold: the higher one stays, the lower one hangs.
        ([A, HALF_A], [0.9, 0.5], [K, U]),
        # What an undecided one overlaps is undecided too; what a sure one suppresses is not.
        ([A, HALF_A, [64, 0, 164, 100]], [0.9, 0.5, 0.4], [K, U, U]),
        ([A, NEAR_A, [1, 0, 101, 100]], [0.9, 0.5, 0.5], [K, S, S]),
        # The lower one of equal score is suppressed by a third: it cannot threaten the upper one.
        ([A, [60, 0, 160, 100], [25, 0, 125, 100]], [0.9, 0.5, 0.5], [K, K, S]),
    ],
)
def test_fates(boxes: list, scores: list, expected: list) -> None:
    assert fates(boxes, scores) == expected


def test_classes_compete_only_when_agnostic() -> None:
    assert fates([A, NEAR_A], [0.9, 0.9], [0, 1]) == [K, K]
    assert fates([A, NEAR_A], [0.9, 0.9], [0, 1], class_offset=False) == [K, K]
    assert fates([A, NEAR_A], [0.9, 0.9], [0, 1], class_agnostic=True) == [U, U]
    assert fates([A, NEAR_A], [0.9, 0.5], [0, 1], class_agnostic=True) == [K, S]


def test_negative_coordinates_reach_into_the_group_before() -> None:
    # Class 1 is shifted by 100 + 1: its box starting at -101 lands on class 0's box, as in mmcv.
    boxes = [[0, 0, 100, 100], [-101, -101, -1, -1]]
    assert fates(boxes, [0.9, 0.5], [0, 1]) == [K, S]
    assert fates(boxes, [0.9, 0.5], [0, 1], class_offset=False) == [K, K]


def test_where_nms_compares_boxes() -> None:
    boxes = np.array([[-101.0, -101, -1, -1], [0, 0, 100, 100]])
    item = call(boxes, [0.9, 0.5], [1, 0])
    assert offset_boxes(item, boxes, item.idxs).tolist() == [[0, 0, 100, 100], [0, 0, 100, 100]]
    item.class_offset = False
    assert offset_boxes(item, boxes, item.idxs)[0].min() > 100
    item.class_agnostic = True
    assert (offset_boxes(item, boxes, item.idxs) == boxes).all()


def test_a_score_at_a_cut_is_never_sure() -> None:
    assert fates([A, NEAR_A], [0.3, 0.2], score_cuts=(0.05,)) == [K, S]
    assert fates([A, NEAR_A], [0.3, 0.2], score_cuts=(0.3 - TOL / 2,)) == [U, S]
    assert fates([A, NEAR_A], [0.30, 0.29995], score_cuts=(0.3,)) == [U, U]
    assert fates([A, FAR], [0.3, 0.2], score_cuts=(0.25,)) == [K, S]


def test_boxes_of_negative_or_no_size_suppress_nothing() -> None:
    assert fates([[50, 50, 40, 40], A], [0.9, 0.5]) == [K, K]
    assert fates([[50, 50, 50, 50], A], [0.9, 0.5]) == [K, K]
    assert fates([[np.inf, 0, np.inf, 10], A], [0.9, 0.5], class_agnostic=True)[1] == K


def test_offset_rounding_matters_for_many_classes_only() -> None:
    assert offset_rounding(call([[0, 0, 640, 640]], [0.5], [79])) < 0.005
    assert offset_rounding(call([[0, 0, 1333, 800]], [0.5], [1202])) > 0.05
    assert offset_rounding(call([[0, 0, 1333, 800]], [0.5], [1202], class_agnostic=True)) == 0


def test_rounding_of_the_offset_makes_undecided() -> None:
    """At class 1202, float32 coordinates are 0.125 px apart: no tolerance of boxes knows that."""
    wide = [1200, 700, 1333, 799]
    boxes = [[0, 0, 30, 30], [10.01, 0, 40.01, 30], wide]
    assert fates(boxes, [0.9, 0.5, 0.4], [1202, 1202, 0], box_tol=0.0) == [K, U, K]
    assert fates(boxes, [0.9, 0.5, 0.4], [0, 0, 1], box_tol=0.0) == [K, K, K]


grid_box = st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(2, 6), st.integers(2, 6)).map(
    lambda v: [v[0], v[1], v[0] + v[2], v[1] + v[3]]
)
candidates = st.lists(st.tuples(grid_box, st.integers(0, 4), st.integers(0, 1)), min_size=1, max_size=5)


@settings(deadline=None, max_examples=60)
@given(candidates, st.sampled_from([0.3, 1 / 3, 0.5]))
def test_score_ties_against_every_order(items: list, threshold: float) -> None:
    """Scores move by half a tolerance each way, in all combinations; boxes stay."""
    boxes, steps, idxs = (np.array(part, float) for part in zip(*items, strict=True))
    scores = 0.5 + steps * 0.4 * TOL
    found = fates(boxes, scores, idxs, threshold=threshold, box_tol=0.0)
    worlds = [
        plain_nms(boxes, scores + np.array(moves) * 0.499 * TOL, idxs, threshold)
        for moves in itertools.product((-1, 0, 1), repeat=len(items))
    ]
    for i, fate in enumerate(found):
        inside = [i in world for world in worlds]
        assert fate != K or all(inside)
        assert fate != S or not any(inside)


@settings(deadline=None, max_examples=60)
@given(candidates, st.sampled_from([0.3, 1 / 3, 0.5]), st.integers(0, 2**32 - 1))
def test_box_and_score_rounding_against_sampled_worlds(items: list, threshold: float, seed: int) -> None:
    boxes, steps, idxs = (np.array(part, float) for part in zip(*items, strict=True))
    scores = 0.5 + steps * 0.4 * TOL
    found = fates(boxes, scores, idxs, threshold=threshold)
    rng = np.random.default_rng(seed)
    for _ in range(60):
        moved = boxes + rng.choice([-0.05, 0, 0.05], boxes.shape)
        world = plain_nms(moved, scores + rng.uniform(-0.499, 0.499, len(items)) * TOL, idxs, threshold)
        for i, fate in enumerate(found):
            assert fate != K or i in world
            assert fate != S or i not in world


@settings(deadline=None, max_examples=200)
@given(grid_box, grid_box, st.sampled_from([0.02, 0.3]))
def test_iou_bounds_hold_at_every_corner(a: list, b: list, tol: float) -> None:
    a, b = np.array(a, float) * 10, np.array(b, float) * 10
    low, high = (bound[0] for bound in iou_bounds(a, b[None], (tol, tol)))
    signs = np.array(list(itertools.product((-tol, tol), repeat=8)))
    values = [plain_iou(a + move[:4], b + move[4:]) for move in signs]
    assert low <= min(values) + 1e-12 and high >= max(values) - 1e-12
    # Not looser than needed: twice the true reach, for boxes of 20 px and more.
    if min(values) > 0.1 and tol == 0.02:
        assert high - low <= 2 * (max(values) - min(values)) + 1e-3


def test_iou_tolerance_of_equal_squares() -> None:
    """The docstring's figure: at IoU 0.5 at most 3.75 d / s."""
    low, high = iou_bounds(np.array(A, float), np.array([HALF_A]), (0.05, 0.05))
    assert (high - low)[0] / 2 == pytest.approx(3.75 * 0.05 / 100, rel=0.15)
    assert (high + low)[0] / 2 == pytest.approx(0.5)


def test_without_tolerance_it_is_plain_nms() -> None:
    rng = np.random.default_rng(0)
    centre, size = rng.uniform(0, 100, (200, 2)), rng.uniform(5, 25, (200, 2))
    boxes = np.concatenate([centre - size, centre + size], 1).clip(0)
    scores, idxs = rng.permutation(200) / 200, rng.integers(0, 3, 200)
    expected = plain_nms(boxes, scores, idxs, 0.5)
    assert 50 < len(expected) < 190
    for class_offset in (True, False):
        found = three_valued_nms(call(boxes, scores, idxs, class_offset=class_offset), 0.0, (0.0, 0.0))
        assert set(np.flatnonzero(found == K)) == expected
        assert (found != U).all()


def test_five_thousand_candidates_are_fast() -> None:
    rng = np.random.default_rng(0)
    centre, size = rng.uniform(0, 640, (5000, 2)), rng.uniform(10, 60, (5000, 2))
    boxes = np.concatenate([centre - size, centre + size], 1).clip(0)
    start = time.process_time()
    three_valued_nms(call(boxes, rng.random(5000), rng.integers(0, 80, 5000)), TOL, (0.05, 0.05))
    three_valued_nms(call(boxes, rng.random(5000)), TOL, (0.05, 0.05))
    assert time.process_time() - start < 8
