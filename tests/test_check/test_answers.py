from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from mmdeploy_lite.check import DetectionEvidence, Detections, NmsCall, RawTensors, SegEvidence, SegMap


def dets(**changes: object) -> Detections:
    fields = dict(
        bboxes=np.array([[0, 0, 9, 9], [1, 1, 5, 5]], np.float32),
        scores=np.array([0.9, 0.5], np.float32),
        labels=np.array([0, 2]),
        masks=np.zeros((2, 10, 10), bool),
    )
    return Detections(**{**fields, **changes})


def test_good_answers_pass() -> None:
    dets().validate()
    dets(masks=None).validate(num_classes=3)
    Detections.empty().validate()
    Detections.empty((4, 5)).validate()
    SegMap(np.zeros((3, 4), np.int64)).validate(num_classes=1)
    RawTensors(dict(a=np.zeros((2, 3)), b=np.zeros(0, np.int64))).validate()


@pytest.mark.parametrize(
    ('changes', 'num_classes', 'message'),
    [
        (dict(bboxes=np.zeros((2, 5), np.float32)), None, r'bboxes must have shape \(2, 4\)'),
        (dict(bboxes=np.zeros((3, 4), np.float32)), None, r'bboxes must have shape \(2, 4\)'),
        (dict(bboxes=np.zeros(4, np.float32)), None, 'bboxes must have 2 dimensions'),
        (dict(bboxes=np.zeros((2, 4), np.int64)), None, 'bboxes must be floating point, got int64'),
        (dict(bboxes=[[0, 0, 1, 1]] * 2), None, 'bboxes must be a numpy array, got list'),
        (dict(scores=np.array([[0.9], [0.5]], np.float32)), None, 'scores must have 1 dimensions'),
        (
            dict(scores=np.array([0.9, np.nan], np.float32)),
            None,
            r'scores has 1 values that are not finite, .* \(1,\): nan',
        ),
        (dict(bboxes=np.full((2, 4), np.inf, np.float32)), None, 'bboxes has 8 values that are not finite'),
        (dict(labels=np.array([0])), None, r'labels must have shape \(2,\)'),
        (dict(labels=np.array([0.0, 2.0])), None, 'labels must be integer'),
        (dict(labels=np.array([0, -1])), None, 'labels must not be negative, got -1'),
        (dict(labels=np.array([0, 2])), 2, r'labels must lie in 0..1, got 2'),
        (dict(masks=np.zeros((1, 10, 10), bool)), None, 'there are 1 masks for 2 scores'),
        (dict(masks=np.zeros((2, 10), bool)), None, 'masks must have 3 dimensions'),
        (dict(masks=np.zeros((2, 10, 10), np.uint8)), None, 'masks must be bool'),
    ],
)
def test_bad_detections_are_named(changes: dict, num_classes: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dets(**changes).validate(num_classes)


@pytest.mark.parametrize(
    ('answer', 'num_classes', 'message'),
    [
        (SegMap(np.zeros((1, 3, 4), np.int64)), None, 'seg_map must have 2 dimensions'),
        (SegMap(np.zeros((3, 4), np.float32)), None, 'seg_map must be integer'),
        (SegMap(np.full((3, 4), 7)), 7, r'seg_map classes must lie in 0..6, got 7'),
        (SegMap(np.full((3, 4), -1)), 7, r'seg_map classes must lie in 0..6, got -1'),
    ],
)
def test_bad_maps_are_named(answer: SegMap, num_classes: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        answer.validate(num_classes)


def test_bad_tensors_are_named() -> None:
    with pytest.raises(ValueError, match='logits has 1 values that are not finite'):
        RawTensors(dict(logits=np.array([1.0, np.inf]))).validate()
    with pytest.raises(ValueError, match='logits must be numeric'):
        RawTensors(dict(logits=np.array(['a']))).validate()


def test_nms_call_needs_matching_lengths_and_tolerates_infinite_boxes() -> None:
    boxes, scores, idxs = np.zeros((2, 4), np.float32), np.zeros(2, np.float32), np.zeros(2, np.int64)
    NmsCall(np.full_like(boxes, np.inf), scores, idxs, 0.5).validate()
    with pytest.raises(ValueError, match=r'an NMS call needs boxes \(N, 4\)'):
        NmsCall(boxes, scores, idxs[:1], 0.5).validate()
    with pytest.raises(ValueError, match=r'an NMS call needs boxes \(N, 4\)'):
        NmsCall(boxes[:, :3], scores, idxs, 0.5).validate()


def test_float64_run_happens_once() -> None:
    runs = []

    def run() -> Detections:
        runs.append(1)
        return Detections.empty()

    evidence = DetectionEvidence(float64=run)
    assert not runs
    assert evidence.float64_answer() is evidence.float64_answer()
    assert runs == [1]
    assert DetectionEvidence().float64_answer() is None
    assert SegEvidence(float64=lambda: None).float64_answer() is None


def test_comparing_needs_numpy_alone() -> None:
    code = (
        'import sys, mmdeploy_lite.check, mmdeploy_lite.check.coverage;'
        "print([m for m in ('torch', 'mmengine', 'onnx', 'onnxruntime', 'cv2', 'scipy', 'rich') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == '[]'
