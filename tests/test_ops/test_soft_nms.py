"""Soft NMS against a direct transcription of its definition, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmcv.ops import batched_nms, soft_nms


def iou(a: list[float], b: list[float], offset: int) -> float:
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]) + offset)
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]) + offset)
    areas = [(box[2] - box[0] + offset) * (box[3] - box[1] + offset) for box in (a, b)]
    inter = width * height
    union = areas[0] + areas[1] - inter
    if union == 0:
        return math.inf if inter > 0 else math.nan
    return inter / union


def transcribed(
    boxes: list[list[float]],
    scores: list[float],
    threshold: float,
    sigma: float,
    least: float,
    method: str,
    offset: int,
) -> list[tuple[int, float]]:
    """The algorithm one element at a time: indices and decayed scores, in the order the boxes are taken."""
    left = [[index, box, score] for index, (box, score) in enumerate(zip(boxes, scores, strict=True))]
    i = 0
    while i < len(left):
        best = i
        for j in range(i + 1, len(left)):
            if left[best][2] < left[j][2]:
                best = j
        left[i], left[best] = left[best], left[i]
        j = i + 1
        while j < len(left):
            overlap = iou(left[i][1], left[j][1], offset)
            if method == 'gaussian':
                left[j][2] *= math.exp(-overlap * overlap / sigma)
            elif overlap >= threshold:
                left[j][2] *= 1 - overlap if method == 'linear' else 0
            if left[j][2] < least:
                left[j] = left[-1]
                left.pop()
            else:
                j += 1
        i += 1
    return [(index, score) for index, _, score in left]


coordinate = st.integers(-2, 8)
size = st.integers(1, 6)
box_list = st.lists(st.tuples(coordinate, coordinate, size, size, st.integers(0, 8)), max_size=20)


@given(
    box_list,
    st.sampled_from(['naive', 'linear', 'gaussian']),
    st.sampled_from([0.25, 0.5]),
    st.sampled_from([0.001, 0.1, 0.3]),
    st.integers(0, 1),
)
@settings(max_examples=150, deadline=None)
def test_equals_the_transcription(rows: list, method: str, threshold: float, least: float, offset: int) -> None:
    values = torch.tensor(rows, dtype=torch.float64).reshape(-1, 5)
    boxes = torch.cat([values[:, :2], values[:, :2] + values[:, 2:4]], dim=1)
    scores = values[:, 4] / 8
    expected = transcribed(boxes.tolist(), scores.tolist(), threshold, 0.5, least, method, offset)
    dets, inds = soft_nms(boxes, scores, threshold, 0.5, least, method, offset)
    assert inds.tolist() == [index for index, _ in expected]
    assert dets.shape == (len(expected), 5)
    assert torch.equal(dets[:, :4], boxes[inds])
    assert dets[:, 4].tolist() == pytest.approx([score for _, score in expected], abs=1e-12)


def test_by_hand() -> None:
    boxes = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 1], [10, 10, 12, 12]])
    scores = torch.tensor([0.8, 0.9, 0.5])
    # The IoU of the first two is exactly 0.5, which decays.
    for method, decayed in (('linear', 0.4), ('gaussian', 0.8 * math.exp(-0.5))):
        dets, inds = soft_nms(boxes, scores, 0.5, method=method)
        order = [1, 2, 0] if decayed < 0.5 else [1, 0, 2]
        assert inds.tolist() == order
        assert dets[order.index(0), 4].item() == pytest.approx(decayed, abs=1e-6)
    assert soft_nms(boxes, scores, 0.5, method='naive')[1].tolist() == [1, 2]
    assert soft_nms(boxes, scores, 0.51, method='naive')[1].tolist() == [1, 0, 2]


def test_single_precision_and_many_boxes() -> None:
    rng = np.random.default_rng(3)
    corner = rng.uniform(0, 100, (150, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(1, 40, (150, 2))], axis=1).astype(np.float32)
    scores = rng.permutation(150).astype(np.float32) / 150
    dets, inds = soft_nms(boxes, scores, 0.3, 0.5, 0.05, 'gaussian')
    expected = transcribed(boxes.tolist(), scores.tolist(), 0.3, 0.5, 0.05, 'gaussian', 0)
    assert isinstance(dets, np.ndarray) and dets.dtype == np.float32
    assert inds.tolist() == [index for index, _ in expected]
    np.testing.assert_allclose(dets[:, 4], [score for _, score in expected], atol=1e-5)


def test_nan_score_is_taken_in_its_turn() -> None:
    """NaN is not greater than anything: it is passed over until it stands first itself."""
    boxes = torch.tensor([[0.0, 0, 1, 1], [5, 5, 6, 6], [9, 9, 10, 10]])
    assert soft_nms(boxes, torch.tensor([0.1, math.nan, 0.9]), 0.5)[1].tolist() == [2, 1, 0]


def test_inputs_stay_as_they_are() -> None:
    boxes = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 2]])
    scores = torch.tensor([0.5, 0.9])
    soft_nms(boxes, scores, 0.5)
    assert boxes.tolist() == [[0, 0, 2, 2], [0, 0, 2, 2]]
    assert scores.tolist() == torch.tensor([0.5, 0.9]).tolist()


def test_none_left() -> None:
    dets, inds = soft_nms(torch.zeros(0, 4), torch.zeros(0), 0.5)
    assert dets.shape == (0, 5) and inds.shape == (0,)


def test_in_batched_nms() -> None:
    boxes = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 2], [0, 0, 2, 2]])
    dets, inds = batched_nms(
        boxes, torch.tensor([0.5, 0.9, 0.8]), torch.tensor([0, 0, 1]), dict(type='soft_nms', iou_threshold=0.5)
    )
    assert inds.tolist() == [1, 2]
    assert dets[:, 4].tolist() == pytest.approx([0.9, 0.8])
