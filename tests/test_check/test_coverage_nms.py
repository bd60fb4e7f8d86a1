"""What images did not exercise of NMS, of levels, and of an image's way into the network."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mmdeploy_lite.check import DetectionEvidence, Detections
from mmdeploy_lite.check.answers import Levels
from mmdeploy_lite.check.coverage_inputs import unprepared
from mmdeploy_lite.check.coverage_nms import between_boxes, of_levels
from mmdeploy_lite.export.preprocess import PreprocessSpec

Build = Callable[..., Any]
A = [0, 0, 100, 100]
IOU_55, IOU_45 = [29, 0, 129, 100], [38, 0, 138, 100]


def lines(scene: Build, boxes: list, scores: list, labels: list, **options: Any) -> list[str]:
    case = scene(boxes, scores, labels, **options)
    return between_boxes([(case.run(), case.evidence)])


def test_overlaps_on_both_sides_of_the_threshold_and_of_two_classes(scene: Build) -> None:
    assert lines(scene, [A, IOU_55, IOU_45, A], [0.9, 0.8, 0.7, 0.6], [0, 0, 0, 1]) == []


def test_threshold_that_could_be_another(scene: Build) -> None:
    (first, second) = lines(scene, [A, A, A], [0.9, 0.8, 0.7], [0, 0, 1])
    assert first == 'the IoU threshold 0.5 of NMS could as well be 1.00: no overlap is between'
    assert second == 'the IoU threshold 0.5 of NMS could as well be 0.00: no overlap is between'


def test_classes_that_never_meet(scene: Build) -> None:
    boxes, scores = [A, IOU_55, IOU_45], [0.9, 0.8, 0.7]
    assert lines(scene, boxes, scores, [0, 0, 0]) == [
        'no objects of different classes overlap as much as NMS allows within one'
    ]
    assert lines(scene, boxes, scores, [0, 0, 0], class_agnostic=True) == []


def test_what_the_cap_removed_says_nothing_of_nms(scene: Build) -> None:
    found = lines(scene, [A, [300, 0, 400, 100], IOU_55], [0.9, 0.8, 0.7], [0, 0, 0], cap=2)
    assert not any('1.00' in line or '0.55' in line for line in found)


def answer(scores: list[float], labels: list[int]) -> Detections:
    boxes = np.zeros((len(scores), 4), np.float32)
    return Detections(boxes, np.array(scores, np.float32), np.array(labels, np.int64))


def test_levels() -> None:
    levels = Levels(
        3, np.array([0, 0, 1, 2]), np.float32([0.9, 0.8, 0.7, 0.2]), np.array([0, 1, 0, 0]), np.array([5, 5, 1, 0])
    )
    evidence = DetectionEvidence(levels=levels, rois_per_level=(4, 0, 2), preselected=False)
    assert of_levels([(answer([0.9, 0.8, 0.7], [0, 1, 0]), evidence)]) == [
        'no object comes from level 3 of 3, the finest being 1',
        'no RoI is on level 2 of 3, the finest being 1',
        'no level has more candidates than nms_pre',
    ]
    everything = DetectionEvidence(levels=levels, rois_per_level=(1, 1, 1), preselected=True)
    assert of_levels([(answer([0.9, 0.8, 0.7, 0.2], [0, 1, 0, 0]), everything)]) == []
    assert of_levels([(answer([0.9, 0.7, 0.2], [0, 0, 0]), everything)]) == [
        'no place of the head gives objects of two classes'
    ]
    assert of_levels([(answer([0.9], [0]), DetectionEvidence())]) == []


def task(**options: Any) -> Any:
    values = dict(
        preprocess='graph',
        preprocess_spec=PreprocessSpec(False, None, None, 0.0, 32, None),
        input_names=['image', 'scale_factor'],
        rescale=True,
    )
    return SimpleNamespace(**{**values, **options})


def sample(shape: tuple[int, int], factor: tuple[float, float]) -> Any:
    return SimpleNamespace(shape=shape, data_sample=SimpleNamespace(metainfo=dict(scale_factor=factor)))


def boxes(*rows: list[float]) -> Detections:
    return Detections(np.float32(rows), np.ones(len(rows), np.float32), np.zeros(len(rows), np.int64))


def test_the_way_in_and_out() -> None:
    plain = sample((64, 96), (1.0, 1.0))
    assert unprepared(task(), [plain], [boxes([0, 0, 50, 50])]) == [
        'no image is padded by the data preprocessor: all come out of the pipeline as large as it asks',
        'every image is scaled by the same factor in width and height',
        'no image is scaled',
        'no box reaches the right or lower border of the image, where boxes are clipped',
    ]
    other = sample((60, 96), (0.5, 0.48))
    assert unprepared(task(), [plain, other], [boxes([0, 0, 9, 9]), boxes([0, 0, 50, 125])]) == []


@pytest.mark.parametrize(('shape', 'single'), [((128, 128), True), ((128, 160), False)])
def test_windows(shape: tuple[int, int], single: bool) -> None:
    model = SimpleNamespace(test_cfg=SimpleNamespace(crop_size=(128, 128)))
    found = unprepared(
        task(input_names=['image'], preprocess='none', slides=True, model=model), [sample(shape, (1, 1))], [None]
    )
    assert found == (['every image is a single window of slide inference'] if single else [])
