"""Ties cannot be abused: equal values may change places, anything else may not, and excuses come from PyTorch alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdeploy_lite.check import (
    DetectionEvidence,
    Detections,
    RawTensors,
    SegEvidence,
    SegMap,
    Tolerance,
    compare_detections,
    compare_seg_map,
    compare_tensors,
)

SIZE = (400, 400)
TOL = Tolerance(undecidable_share=1.0)
Build = Callable[..., Any]
seeds = st.integers(0, 2**32 - 1)


def tied(scene: Build, rng: np.random.Generator) -> Any:
    """Clusters of boxes with equal scores, some of them the same box: who of them survives is a matter of order."""
    count = int(rng.integers(2, 16))
    corner = rng.choice([0.0, 30, 60, 200], (count, 2))
    return scene(
        np.concatenate([corner, corner + 100], 1),
        rng.choice(np.float32([0.3, 0.5, 0.7]), count),
        rng.integers(0, 2, count),
        cap=rng.choice([None, 3]),
    )


def in_order(case: Any, order: np.ndarray) -> Any:
    return replace(case, boxes=case.boxes[order], scores=case.scores[order], labels=case.labels[order])


@settings(deadline=None, max_examples=300)
@given(seeds)
def test_candidates_of_equal_score_in_any_order(scene: Build, seed: int) -> None:
    """The same post-processing, in which another of several equal ones comes first."""
    rng = np.random.default_rng(seed)
    case = tied(scene, rng)
    out = in_order(case, rng.permutation(len(case.scores))).run()
    result = compare_detections(case.run(), out, SIZE, TOL, case.evidence)
    assert result.verdict != 'unequal', result.reasons


def test_the_order_does_decide(scene: Build) -> None:
    """The property above would be empty if it never changed who survives; without evidence nothing is excused."""
    changed = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        case = tied(scene, rng)
        ref, out = case.run(), in_order(case, rng.permutation(len(case.scores))).run()
        without = compare_detections(ref, out, SIZE, TOL)
        assert not without.excused
        assert compare_detections(ref, out, SIZE, TOL, DetectionEvidence()).verdict == without.verdict
        changed += without.verdict == 'unequal'
    assert changed > 20


@settings(deadline=None, max_examples=300)
@given(seeds, st.sampled_from(['lost', 'more', 'label', 'box', 'score']))
def test_a_tie_excuses_nothing_but_itself(scene: Build, seed: int, change: str) -> None:
    """One more object, which nothing ties with, beside the ties: any change of it is unequal."""
    rng = np.random.default_rng(seed)
    case = tied(scene, rng)
    case = replace(
        case,
        boxes=np.concatenate([case.boxes, [[340.0, 340, 380, 390]]]),
        scores=np.concatenate([case.scores, np.float32([0.9])]),
        labels=np.concatenate([case.labels, [1]]),
    )
    ref, out = case.run(), in_order(case, rng.permutation(len(case.scores))).run()
    row = int(np.argmax(out.scores))
    rows: Any = np.arange(len(out))
    if change == 'lost':
        rows = rows != row
    elif change == 'more':
        rows = [*rows, row]
    out = Detections(out.bboxes[rows], out.scores[rows], out.labels[rows])
    if change == 'label':
        out.labels[row] = 0
    elif change == 'box':
        out.bboxes[row, rng.integers(4)] += rng.choice([-1, 1]) * TOL.box(SIZE) * 1.2
    elif change == 'score':
        out.scores[row] -= TOL.score * 1.2
    assert compare_detections(ref, out, SIZE, TOL, case.evidence).verdict == 'unequal'


def logits(rng: np.random.Generator) -> np.ndarray:
    """(4, 12, 14) whose best two are equal in half of the pixels."""
    values = rng.choice(np.float32([0, 1, 2, 3]), (4, 12, 14))
    values[0, :, 7:] = 9
    return values


def evidence_of(values: np.ndarray) -> SegEvidence:
    best = np.sort(values, axis=0)
    return SegEvidence(best[-1] - best[-2] <= 1e-4 * np.ptp(values))


@settings(deadline=None, max_examples=200)
@given(seeds)
def test_equal_logits_in_any_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = logits(rng)
    order = rng.permutation(4)
    out = order[values[order].argmax(0)]  # the first of the best, in another order
    ref = values.argmax(0)
    result = compare_seg_map(SegMap(ref), SegMap(out), TOL, evidence_of(values))
    assert result.equal and result.excused_pixels == int((ref != out).sum())
    if result.excused_pixels:
        assert compare_seg_map(SegMap(ref), SegMap(out), TOL).verdict == 'unequal'


@settings(deadline=None, max_examples=200)
@given(seeds)
def test_one_clear_pixel_is_enough(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = logits(rng)
    out = values.argmax(0)
    row, column = int(rng.integers(12)), int(rng.integers(7, 14))
    out[row, column] = int(rng.integers(1, 4))
    result = compare_seg_map(SegMap(values.argmax(0)), SegMap(out), TOL, evidence_of(values))
    assert result.verdict == 'unequal' and result.clear_pixels == 1


@settings(deadline=None, max_examples=200)
@given(seeds, st.floats(1.05, 1e6), st.floats(0, 0.95))
def test_numbers_beyond_their_tolerance(seed: int, beyond: float, within: float) -> None:
    rng = np.random.default_rng(seed)
    ref = rng.normal(size=(3, 5)).astype(np.float32)
    place, sign = (int(rng.integers(3)), int(rng.integers(5))), rng.choice([-1, 1])
    for share, equal in ((beyond, False), (within, True)):
        out = ref.astype(np.float64)
        out[place] += sign * share * TOL.tensor_rel * np.ptp(ref.astype(np.float64))
        result = compare_tensors(RawTensors({'x': ref}), RawTensors({'x': out}), TOL)
        assert result.equal is equal
