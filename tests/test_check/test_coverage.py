from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mmdeploy_lite.check import Detections, RawTensors, SegMap
from mmdeploy_lite.check.coverage import exercised

A, NEAR_A, FAR = [0, 0, 100, 100], [5, 0, 105, 100], [300, 300, 380, 390]
Build = Callable[..., Any]


def test_nothing_compared() -> None:
    assert exercised([]) == ['no image was compared']


def test_everything_exercised(scene: Build) -> None:
    case = scene([A, NEAR_A, FAR, FAR], [0.9, 0.8, 0.7, 0.01], [0, 0, 1, 1], cap=2)
    ref = case.run()
    case.evidence.rejected = 1
    empty = Detections.empty()
    assert exercised([ref, empty], [case.evidence, None], num_classes=2, sizes=[(3, 4), (4, 3)], dynamic=True) == []


def test_classes(dets: Build) -> None:
    answers = [dets([A], [0.9], [1]), Detections.empty()]
    assert exercised(answers, class_names=['cat', 'dog', 'cow']) == ['2 of 3 classes never appear: cat, cow']
    assert exercised(answers, num_classes=3) == ['2 of 3 classes never appear']
    names = [str(i) for i in range(80)]
    assert exercised(answers, class_names=names) == ['79 of 80 classes never appear: 0, 2, 3, 4, 5, ...']
    assert exercised(answers) == []


def test_empty_and_not_empty(dets: Build) -> None:
    assert exercised([dets([A], [0.9])]) == ['no image without detections']
    assert exercised([Detections.empty()]) == ['no image with detections']


def test_masks(dets: Build) -> None:
    empty = Detections.empty((4, 4))
    assert exercised([dets([A], [0.9], masks=np.zeros((1, 4, 4), bool)), empty]) == ['no mask holds a pixel']
    assert exercised([dets([A], [0.9], masks=np.eye(4, dtype=bool)[None]), empty]) == []


@pytest.mark.parametrize(
    ('scores', 'boxes', 'cap', 'suppresses'),
    [
        ([0.9, 0.8], [A, NEAR_A], None, True),
        ([0.9, 0.8], [A, FAR], None, False),
        ([0.9, 0.8, 0.7], [A, NEAR_A, FAR], 2, True),
        # The cap alone explains what is missing.
        ([0.9, 0.8, 0.7], [A, FAR, [150, 0, 200, 50]], 2, False),
        # So does the cap when the one that NMS would remove comes after it.
        ([0.9, 0.8, 0.7], [A, FAR, NEAR_A], 2, False),
    ],
)
def test_suppression(scene: Build, scores: list, boxes: list, cap: int | None, suppresses: bool) -> None:
    case = scene(boxes, scores, cap=cap)
    ref = case.run()
    case.evidence.rejected = 1
    lines = exercised([ref, Detections.empty()], [case.evidence, None])
    assert lines == ([] if suppresses else ['NMS suppressed nothing'])


def test_cap(scene: Build) -> None:
    case = scene([A, NEAR_A, FAR], [0.9, 0.8, 0.7], cap=100)
    ref = case.run()
    case.evidence.rejected = 1
    lines = exercised([ref, Detections.empty()], [case.evidence, None])
    assert lines == ['the cap of 100 detections was never reached (most: 2)']


def test_score_threshold(scene: Build) -> None:
    case = scene([A, NEAR_A], [0.9, 0.8])
    answers = [case.run(), Detections.empty()]
    evidence = case.evidence
    assert exercised(answers, [evidence]) == ['whether the score threshold 0.05 rejected anything was not recorded']
    evidence.rejected = 0
    assert exercised(answers, [evidence]) == ['the score threshold 0.05 rejected nothing']
    evidence.rejected = 3
    assert exercised(answers, [evidence]) == []
    # The call holds candidates below its own cut: that is a record too.
    evidence.rejected = None
    evidence.nms_calls[0].score_cuts = (0.85,)
    assert exercised([case.run(), Detections.empty()], [evidence]) == ['NMS suppressed nothing']


def test_label_maps_and_sizes() -> None:
    answers = [SegMap(np.zeros((4, 6), np.int64)), SegMap(np.ones((4, 6), np.int64))]
    assert exercised(answers, num_classes=2) == ['no label map holds more than one class']
    answers = [SegMap(np.eye(4, dtype=np.int64))]
    assert exercised(answers, num_classes=3, sizes=[(4, 6), (4, 6)], dynamic=True) == [
        '1 of 3 classes never appear',
        'height and width are dynamic, but every image is 6x4',
    ]
    assert exercised(answers, num_classes=2, sizes=[(4, 6), (4, 6)]) == []
    assert exercised([RawTensors({})], num_classes=3) == []
