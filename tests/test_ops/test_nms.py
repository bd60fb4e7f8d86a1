"""Greedy NMS and NMS match against the definition, in plain Python."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmcv.ops import batched_nms, nms, nms_match


def iou(a: list[float], b: list[float], offset: int) -> float:
    """IoU in double precision, signed areas and IEEE division included."""
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]) + offset)
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]) + offset)
    areas = [(box[2] - box[0] + offset) * (box[3] - box[1] + offset) for box in (a, b)]
    inter = width * height
    union = areas[0] + areas[1] - inter
    if union == 0:
        return math.inf if inter > 0 else math.nan
    return inter / union


def greedy(boxes: list[list[float]], scores: list[float], threshold: float, offset: int) -> list[int]:
    kept: list[int] = []
    for i in sorted(range(len(boxes)), key=lambda i: -scores[i]):  # stable: lower index first
        if not any(iou(boxes[k], boxes[i], offset) > threshold for k in kept):
            kept.append(i)
    return kept


# Small integers: many equal scores, zero and negative sizes, IoUs exactly at the threshold; exact in float32.
coordinate = st.integers(-3, 8)
box_list = st.lists(st.tuples(coordinate, coordinate, coordinate, coordinate, st.integers(0, 4)), max_size=25)


@given(box_list, st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 0.75]), st.integers(0, 1), st.booleans())
@settings(max_examples=150, deadline=None)
def test_equals_the_definition(rows: list, threshold: float, offset: int, double: bool) -> None:
    # In float32 a threshold of 1/3 is another number than in double, and so is an IoU of 1/3; both round alike.
    dtype = torch.float64 if double else torch.float32
    values = torch.tensor(rows, dtype=dtype).reshape(-1, 5)
    expected = greedy(values[:, :4].tolist(), values[:, 4].tolist(), threshold, offset)
    dets, inds = nms(values[:, :4], values[:, 4], threshold, offset)
    assert inds.tolist() == expected
    assert inds.dtype == torch.int64 and dets.dtype == dtype
    assert torch.equal(dets, values[inds])


@pytest.mark.parametrize('offset', [0, 1])
@pytest.mark.parametrize('spread', [30, 300, 3000])
def test_many_boxes(spread: int, offset: int) -> None:
    """More boxes than one block, in one group or in many."""
    rng = np.random.default_rng(spread)
    corner = rng.integers(0, spread, (600, 2))
    boxes = np.concatenate([corner, corner + rng.integers(-2, 30, (600, 2))], axis=1).astype(np.float32)
    scores = rng.integers(0, 500, 600).astype(np.float32)
    for threshold in (0.0, 0.5):
        assert nms(boxes, scores, threshold, offset)[1].tolist() == greedy(
            boxes.tolist(), scores.tolist(), threshold, offset
        )


@pytest.mark.parametrize(('width', 'offset'), [(10.5, 0), (10, 0), (9.5, 1), (9, 1)])
def test_chain_of_neighbours(width: float, offset: int) -> None:
    """Each box overlaps the next by half a pixel, or just does not; a threshold of zero forbids any overlap."""
    left = np.arange(1000) * 10
    boxes = np.stack([left, left * 0, left + width, left * 0 + 1], axis=1).astype(np.float32)
    scores = np.random.default_rng(0).permutation(1000).astype(np.float32)
    kept = nms(boxes, scores, 0.0, offset)[1].tolist()
    expected: set[int] = set()
    for i in np.argsort(-scores).tolist():
        if width + offset == 10 or not {i - 1, i + 1} & expected:
            expected.add(i)
    assert kept == sorted(expected, key=lambda i: -scores[i])


def test_negative_threshold_keeps_one() -> None:
    """Boxes that do not touch have IoU 0, which is more."""
    boxes = torch.arange(600.0)[:, None] * 10 + torch.tensor([0.0, 0, 2, 2])
    assert nms(boxes, torch.arange(600.0), -0.1)[1].tolist() == [599]


def test_iou_equal_to_the_threshold_survives() -> None:
    boxes = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 1], [10, 10, 12, 12]])
    scores = torch.tensor([0.9, 0.8, 0.7])
    assert nms(boxes, scores, 0.5)[1].tolist() == [0, 1, 2]
    assert nms(boxes, scores, 0.4999)[1].tolist() == [0, 2]
    # With offset 1 the first two are 9 and 6 pixels large and share 6.
    assert nms(boxes, scores, 0.666, offset=1)[1].tolist() == [0, 2]
    assert nms(boxes, scores, 0.667, offset=1)[1].tolist() == [0, 1, 2]


def test_negative_box_keeps_its_signed_area() -> None:
    # The second has area -4 and a corner order that shares 1 x 1 with nothing; reordered, it would equal the first.
    boxes = torch.tensor([[0.0, 0, 2, 2], [2, 0, 0, 2], [0, 0, 2, 2]])
    assert nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.1)[1].tolist() == [0, 1]
    # With offset 1: area (0 - 1 + 1) * 3 = 0 against 9; they share no width.
    boxes = torch.tensor([[0.0, 0, 2, 2], [1, 0, 0, 2]])
    assert nms(boxes, torch.tensor([0.9, 0.8]), 0.0, offset=1)[1].tolist() == [0, 1]


@pytest.mark.parametrize('place', range(4))
@pytest.mark.parametrize('count', [3, 400])
def test_nan_neither_suppresses_nor_is_suppressed(place: int, count: int) -> None:
    boxes = torch.tensor([[0.0, 0, 2, 2]]).repeat(count, 1)
    boxes[1, place] = math.nan
    scores = torch.linspace(1, 0, count)
    assert nms(boxes, scores, 0.5)[1].tolist() == [0, 1]


def test_equal_scores_keep_their_order() -> None:
    boxes = torch.tensor([[0.0, 0, 2, 2]]).repeat(1000, 1)
    boxes[::2] += 100
    assert nms(boxes, torch.ones(1000), 0.5)[1].tolist() == [0, 1]
    apart = torch.arange(1000.0)[:, None] * 10 + torch.tensor([0.0, 0, 2, 2])
    assert nms(apart, torch.ones(1000), 0.5)[1].tolist() == list(range(1000))


def test_score_threshold_and_max_num() -> None:
    boxes = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 2], [10, 0, 12, 2], [20, 0, 22, 2]])
    scores = torch.tensor([0.3, 0.9, 0.2, 0.8])
    assert nms(boxes, scores, 0.5, score_threshold=0.25)[1].tolist() == [1, 3]
    assert nms(boxes, scores, 0.5, max_num=1)[1].tolist() == [1]


def test_none_left() -> None:
    dets, inds = nms(torch.zeros(0, 4), torch.zeros(0), 0.5)
    assert dets.shape == (0, 5) and inds.shape == (0,) and inds.dtype == torch.int64


def test_numpy_in_numpy_out() -> None:
    boxes = np.array([[0, 0, 2, 2], [0, 0, 2, 2], [5, 5, 6, 6]], dtype=np.float32)
    dets, inds = nms(boxes, np.array([0.1, 0.9, 0.5], dtype=np.float32), 0.5)
    assert isinstance(dets, np.ndarray) and isinstance(inds, np.ndarray)
    assert inds.tolist() == [1, 2]


def test_inputs_with_gradient_and_half_precision() -> None:
    boxes = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 2]])
    scores = torch.tensor([0.1, 0.9])
    assert nms(boxes.clone().requires_grad_(), scores.clone().requires_grad_(), 0.5)[1].tolist() == [1]
    assert nms(boxes.half(), scores.half(), 0.5)[1].tolist() == [1]
    assert nms(boxes.bfloat16(), scores.bfloat16(), 0.5)[1].tolist() == [1]


def test_batched_nms_separates_classes() -> None:
    rng = np.random.default_rng(0)
    corner = rng.integers(0, 60, (700, 2))
    boxes = torch.from_numpy(np.concatenate([corner, corner + rng.integers(1, 30, (700, 2))], axis=1)).float()
    scores = torch.from_numpy(rng.permutation(700)).float()
    classes = torch.from_numpy(rng.integers(0, 6, 700))
    kept = batched_nms(boxes, scores, classes, dict(type='nms', iou_threshold=0.5))[1]
    expected = []
    for label in range(6):
        index = torch.nonzero(classes == label)[:, 0]
        expected += index[greedy(boxes[index].tolist(), scores[index].tolist(), 0.5, 0)].tolist()
    assert kept.tolist() == sorted(expected, key=lambda i: -scores[i])


def test_thirty_thousand_candidates() -> None:
    """A full IoU matrix would take 3.6 GB. The bounds are generous: it takes 0.1 and 2 seconds."""
    generator = torch.Generator().manual_seed(0)
    corner = torch.rand(30000, 2, generator=generator) * 1000
    boxes = torch.cat([corner, corner + torch.rand(30000, 2, generator=generator) * 100], dim=1)
    scores = torch.rand(30000, generator=generator)
    classes = torch.randint(0, 80, (30000,), generator=generator)
    start = time.perf_counter()
    batched_nms(boxes, scores, classes, dict(type='nms', iou_threshold=0.65, split_thr=10**9))
    assert time.perf_counter() - start < 3
    start = time.perf_counter()
    kept = nms(boxes, scores, 0.5)[1]
    assert time.perf_counter() - start < 15
    assert 10000 < len(kept) < 20000


def test_nms_match_groups_by_the_box_that_suppresses() -> None:
    dets = torch.tensor(
        [[0.0, 0, 2, 2, 0.5], [0, 0, 2, 1, 0.9], [0, 0, 2, 2, 0.8], [9, 9, 10, 10, 0.7], [9, 9, 10, 10, 0.7]]
    )
    # The IoU of the second with the first and third is exactly 0.5, and suppresses here.
    assert [group.tolist() for group in nms_match(dets, 0.5)] == [[1, 2, 0], [3, 4]]
    assert [group.tolist() for group in nms_match(dets, 0.51)] == [[1], [2, 0], [3, 4]]
    assert [group.tolist() for group in nms_match(dets.numpy(), 0.51)] == [[1], [2, 0], [3, 4]]
    assert nms_match(dets[:0], 0.5) == []
