"""Intersection over union."""

from __future__ import annotations

import numpy as np
import pytest

from mmdeploy_lite.check.overlaps import iou


def test_every_box_with_every_other():
    one = np.float32([[0, 0, 10, 10], [5, 0, 15, 10], [20, 20, 30, 40]])
    two = np.float32([[0, 0, 10, 10], [0, 0, 20, 20]])
    assert iou(one, two) == pytest.approx(np.array([[1, 0.25], [1 / 3, 0.25], [0, 0]]))
    assert iou(one[:0], two).shape == (0, 2) and iou(one, two[:0]).shape == (3, 0)


def test_boxes_without_area_overlap_nothing():
    boxes = np.float32([[5, 5, 5, 5], [8, 8, 2, 2], [0, 0, 10, 10]])
    overlaps = iou(boxes, boxes)
    assert overlaps[2, 2] == 1 and overlaps.sum() == 1
