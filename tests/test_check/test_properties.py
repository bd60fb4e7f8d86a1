"""What must hold for any detections: found by trying, not by thinking of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdeploy_lite.check import Detections, Tolerance, compare_detections

SIZE = (400, 400)
TOL = Tolerance(undecidable_share=1.0)
Build = Callable[..., Any]
seeds = st.integers(0, 2**32 - 1)

# A coarse grid, so that a change by a whole step is beyond every tolerance and equal scores and boxes are frequent.
detection = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 9), st.integers(0, 2))


def on_grid(items: list) -> Detections:
    columns = np.array(items, np.float64).reshape(-1, 4)
    corner = columns[:, :2] * 10
    return Detections(
        np.concatenate([corner, corner + 25], 1).astype(np.float32),
        (columns[:, 2] / 10).astype(np.float32),
        columns[:, 3].astype(np.int64),
    )


def take(dets: Detections, rows: Any) -> Detections:
    return Detections(dets.bboxes[rows], dets.scores[rows], dets.labels[rows])


@settings(deadline=None)
@given(st.lists(detection, max_size=12), seeds)
def test_order_and_rounding_are_free(items: list, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ref = on_grid(items)
    out = take(ref, rng.permutation(len(ref)))
    out.scores += rng.uniform(-0.9e-4, 0.9e-4, out.scores.shape).astype(np.float32)
    out.bboxes += rng.uniform(-0.045, 0.045, out.bboxes.shape).astype(np.float32)
    result = compare_detections(ref, out, SIZE)
    assert result.equal and result.matched == len(items)


@settings(deadline=None)
@given(
    st.lists(detection, min_size=1, max_size=12),
    st.sampled_from(['score', 'box', 'label', 'drop', 'duplicate', 'add', 'swap x and y']),
    seeds,
)
def test_any_real_change_is_unequal(items: list, change: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ref = on_grid(items)
    out = take(ref, rng.permutation(len(ref)))
    row = int(rng.integers(len(ref)))
    if change == 'score':
        out.scores[row] += rng.choice([-2e-4, 2e-4, 0.05])
    elif change == 'box':
        out.bboxes[row, rng.integers(4)] += rng.choice([-1, -0.1, 0.1, 1])
    elif change == 'label':
        out.labels[row] += 3
    elif change == 'drop':
        out = take(out, np.arange(len(out)) != row)
    elif change == 'duplicate':
        out = take(out, [*range(len(out)), row])
    elif change == 'add':
        out = take(out, [*range(len(out)), row])
        out.bboxes[-1] += 200
    else:
        out.bboxes[row] = out.bboxes[row] + np.array([0, 7, 0, 7], np.float32)
    result = compare_detections(ref, out, SIZE)
    assert result.verdict == 'unequal'
    assert result.reasons and (result.unmatched_ref or result.unmatched_out)


def crowded(scene: Build, seed: int) -> Any:
    """Candidates full of ties: scores in steps of less than a tolerance, IoUs at the threshold, a cap that cuts."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 14))
    # Squares of 100 px that overlap by 2/3 have IoU 0.5; the others are clearly above and below.
    x, y = rng.choice([0, 100 / 3, 200 / 3, 4, 150], count), rng.choice([0, 0, 200], count)
    levels = rng.choice([0.05, 0.3, 0.3 + 3e-4, 0.6], count)
    return scene(
        np.stack([x, y, x + 100, y + 100], 1) + rng.uniform(-0.02, 0.02, (count, 1)),
        np.float32(levels + rng.integers(-2, 3, count) * 0.3e-4),
        rng.integers(0, 2, count),
        score_thr=0.05,
        cap=rng.choice([None, 2, 4]),
        class_agnostic=bool(rng.integers(2)),
    )


def rounding(case: Any, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return dict(
        move_scores=rng.uniform(-0.49e-4, 0.49e-4, case.scores.shape),
        move_boxes=rng.uniform(-0.045, 0.045, case.boxes.shape),
    )


@settings(deadline=None, max_examples=400)
@given(seeds)
def test_rounding_of_candidates_is_never_unequal(scene: Build, seed: int) -> None:
    """The same post-processing on candidates that moved by rounding: whatever it answers, PyTorch explains it."""
    case, rng = crowded(scene, seed), np.random.default_rng(seed + 1)
    ref = case.run()
    out = case.run(**rounding(case, rng))
    result = compare_detections(ref, out, SIZE, TOL, case.evidence)
    # Two of one label and score that a threshold swapped could as well be one that moved: that is refused on purpose.
    near = [sum(abs(s - 0.05) < 2e-4 for s in side.scores.tolist()) for side in (ref, out)]
    assert result.verdict != 'unequal' or min(near) > 0, result.reasons


def test_the_crowded_scenes_do_tie(scene: Build) -> None:
    """The property above would be empty if rounding never changed the answer."""
    changed, why = 0, set()
    for seed in range(200):
        case = crowded(scene, seed)
        ref = case.run()
        out = case.run(**rounding(case, np.random.default_rng(seed + 1)))
        changed += compare_detections(ref, out, SIZE).verdict == 'unequal'
        result = compare_detections(ref, out, SIZE, TOL, case.evidence)
        why |= {item.reason.split(' ')[0] for item in result.excused}
    assert changed > 40
    assert why == {'undecided', 'its', 'K-th'}


@settings(deadline=None, max_examples=300)
@given(seeds, st.sampled_from(['box', 'label', 'score', 'duplicate', 'no nms', 'drop sure', 'cap']))
def test_faults_are_unequal_among_ties(scene: Build, seed: int, fault: str) -> None:
    """Ties all around excuse no fault at something that is sure."""
    case, rng = crowded(scene, seed), np.random.default_rng(seed + 2)
    # Apart from the ties, two that every run keeps, whatever the cap, and one that the first of them suppresses.
    sure = np.array([[300.0, 300, 350, 370], [300, 200, 350, 270], [302, 300, 352, 370]])
    case = replace(
        case,
        boxes=np.concatenate([sure, case.boxes]),
        scores=np.concatenate([[0.95, 0.94, 0.945], case.scores]),
        labels=np.concatenate([[1, 1, 1], case.labels]),
    )
    ref = case.run()
    moves = rounding(case, rng)
    out = case.run(**moves)
    row = int(np.argmax(out.scores))
    if fault == 'box':
        out.bboxes[row] += 1
    elif fault == 'label':
        out.labels[row] += 1
    elif fault == 'score':
        out.scores[row] += 0.01
    elif fault == 'duplicate':
        out = take(out, [*range(len(out)), int(rng.integers(len(out)))])
    elif fault == 'no nms':
        out = replace(case, iou_threshold=1.0).run(**moves)
    elif fault == 'drop sure':
        out = take(out, np.arange(len(out)) != row)
    else:
        out = take(out, slice(0, 1))
    assert compare_detections(ref, out, SIZE, TOL, case.evidence).verdict == 'unequal'
