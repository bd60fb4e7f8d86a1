"""The check is itself checked: faults as exporters make them, injected into a plausible answer; each must be caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mmdeploy_lite.check import DetectionEvidence, Detections, SegEvidence, SegMap, compare_detections, compare_seg_map

SIZE = (240, 320)
CLASSES = 5


@pytest.fixture(scope='module')
def case(scene: Callable[..., Any]) -> Any:
    """200 candidates in clusters, 5 classes, the cap reached, with masks: a few ties of every kind among them."""
    rng = np.random.default_rng(3)
    centre = np.repeat(rng.uniform(30, 210, (40, 2)), 5, 0) + rng.uniform(-6, 6, (200, 2))
    half = np.repeat(rng.uniform(8, 30, (40, 2)), 5, 0)
    labels = np.repeat(rng.integers(0, CLASSES, 40), 5)
    scores = rng.uniform(0.02, 1, 200)
    return scene(np.concatenate([centre - half, centre + half], 1).clip(0), scores, labels, cap=40)


@pytest.fixture(scope='module')
def reference(case: Any) -> tuple[Detections, DetectionEvidence]:
    ref = case.run()
    ref.masks = masks_for(ref)
    evidence = case.evidence
    # Undecided along each mask's border: as strict a test as the evidence of a real model.
    evidence.mask_undecided = np.zeros_like(ref.masks)
    evidence.mask_undecided[:, ::37, ::41] = True
    evidence.float64 = replace(ref)
    assert len(ref) == 40 and len(set(ref.labels.tolist())) == CLASSES
    return ref, evidence


def masks_for(dets: Detections) -> np.ndarray:
    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    x1, y1, x2, y2 = (dets.bboxes[:, i, None, None] for i in range(4))
    return ((x - (x1 + x2) / 2) / (x2 - x1)) ** 2 + ((y - (y1 + y2) / 2) / (y2 - y1)) ** 2 < 0.25


def take(dets: Detections, rows: Any) -> Detections:
    return Detections(dets.bboxes[rows], dets.scores[rows], dets.labels[rows], dets.masks[rows])


FAULTS: dict[str, Callable[[Detections], Detections]] = {
    'boxes shifted by one pixel': lambda d: replace(d, bboxes=d.bboxes + 1),
    'boxes shifted by a tenth of a pixel': lambda d: replace(d, bboxes=d.bboxes + np.float32(0.1)),
    'x2 and y2 without the last pixel': lambda d: replace(d, bboxes=d.bboxes - np.array([0, 0, 1, 1], np.float32)),
    'x and y swapped': lambda d: replace(d, bboxes=d.bboxes[:, [1, 0, 3, 2]]),
    'corners swapped': lambda d: replace(d, bboxes=d.bboxes[:, [2, 3, 0, 1]]),
    'boxes scaled by one percent': lambda d: replace(d, bboxes=d.bboxes * np.float32(1.01)),
    'boxes normalised': lambda d: replace(d, bboxes=d.bboxes / 320),
    'boxes clipped to a smaller image': lambda d: replace(d, bboxes=d.bboxes.clip(max=200)),
    'last class lost': lambda d: take(d, d.labels != CLASSES - 1),
    'top k halved': lambda d: take(d, slice(0, len(d) // 2)),
    'last detection lost': lambda d: take(d, slice(0, len(d) - 1)),
    'first detection lost': lambda d: take(d, slice(1, None)),
    'first detection twice': lambda d: take(d, [0, *range(len(d))]),
    'a row of padding left': lambda d: replace(
        take(d, [0, *range(len(d))]), labels=np.array([-1, *d.labels]), scores=np.array([0, *d.scores], np.float32)
    ),
    'labels permuted': lambda d: replace(d, labels=(d.labels + 1) % CLASSES),
    'labels from one': lambda d: replace(d, labels=d.labels + 1),
    'labels of the neighbours': lambda d: replace(d, labels=np.roll(d.labels, 1)),
    'scores of the neighbours': lambda d: replace(d, scores=np.roll(d.scores, 1)),
    'scores without a factor': lambda d: replace(d, scores=np.sqrt(d.scores)),
    'all scores off by a thousandth': lambda d: replace(d, scores=d.scores - np.float32(1e-3)),
    'masks shifted by one pixel': lambda d: replace(d, masks=np.roll(d.masks, 1, axis=2)),
    'masks of the neighbours': lambda d: replace(d, masks=np.roll(d.masks, 1, axis=0)),
    'masks inverted': lambda d: replace(d, masks=~d.masks),
    'one mask empty': lambda d: replace(d, masks=d.masks & (np.arange(len(d)) != 7)[:, None, None]),
    'nothing found': lambda d: Detections.empty(SIZE),
    'not a number': lambda d: replace(d, scores=np.where(d.scores == d.scores[3], np.nan, d.scores)),
}


def test_no_fault_is_equal(case: Any, reference: tuple[Detections, DetectionEvidence]) -> None:
    ref, evidence = reference
    out = case.run(move_scores=np.random.default_rng(0).uniform(-2e-5, 2e-5, 200))
    out.masks = masks_for(out)
    result = compare_detections(ref, out, SIZE, evidence=evidence, num_classes=CLASSES)
    assert result.equal, result.reasons


@pytest.mark.parametrize('name', FAULTS)
def test_fault_in_detections(reference: tuple[Detections, DetectionEvidence], name: str) -> None:
    ref, evidence = reference
    out = FAULTS[name](take(ref, slice(None)))
    assert compare_detections(ref, out, SIZE, evidence=evidence, num_classes=CLASSES).verdict == 'unequal'


@pytest.mark.parametrize(
    ('name', 'config'),
    [
        ('NMS left out', dict(iou_threshold=1.0)),
        ('IoU threshold of another config', dict(iou_threshold=0.6)),
        ('NMS over all classes', dict(class_agnostic=True, iou_threshold=0.1)),
        ('no cap', dict(cap=None)),
        ('a higher cap', dict(cap=41)),
        ('a lower cap', dict(cap=39)),
        ('a higher threshold', dict(score_thr=0.9)),
    ],
)
def test_fault_in_the_post_processing(case: Any, reference: tuple, name: str, config: dict) -> None:
    ref, evidence = reference
    out = replace(case, **config).run()
    out.masks = masks_for(out)
    assert compare_detections(ref, out, SIZE, evidence=evidence, num_classes=CLASSES).verdict == 'unequal'


@pytest.mark.parametrize('score_thr', [-1.0, 0.049, 0.055, 0.5])
def test_fault_in_the_threshold(case: Any, score_thr: float) -> None:
    apart = np.stack([np.arange(200) % 20 * 15, np.arange(200) // 20 * 20] * 2, 1) + np.array([0, 0, 12, 15])
    uncapped = replace(case, boxes=apart, cap=None, scores=np.linspace(0.045, 0.99, 200))
    ref = uncapped.run()
    out = replace(uncapped, score_thr=score_thr).run()
    assert len(out) != len(ref)
    assert compare_detections(ref, out, SIZE, evidence=uncapped.evidence).verdict == 'unequal'


@pytest.fixture(scope='module')
def logits() -> np.ndarray:
    """(5, H, W) smooth logits with clear regions and narrow borders."""
    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    waves = [np.sin(x / (9 + 2 * i) + i) + np.cos(y / (11 + i) + 2 * i) for i in range(CLASSES)]
    return np.stack(waves).astype(np.float32)


def seg_evidence(logits: np.ndarray) -> SegEvidence:
    best = np.sort(logits, axis=0)
    return SegEvidence(best[-1] - best[-2] <= 1e-4 * np.ptp(logits), logits.argmax(0))


SEG_FAULTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    'second best': lambda v: np.argsort(v, axis=0)[-2],
    'shifted by one pixel': lambda v: np.roll(v.argmax(0), 1, axis=1),
    'transposed twice wrongly': lambda v: v.argmax(0)[::-1],
    'a class lost': lambda v: v[:-1].argmax(0),
    'classes permuted': lambda v: (v.argmax(0) + 1) % CLASSES,
    'argmax before nearest resize': lambda v: v[:, ::2, ::2].argmax(0).repeat(2, 0).repeat(2, 1),
    'constant': lambda v: np.zeros_like(v.argmax(0)),
}


def test_seg_map_without_fault(logits: np.ndarray) -> None:
    noisy = logits + np.random.default_rng(0).uniform(-1, 1, logits.shape).astype(np.float32) * 1e-5
    result = compare_seg_map(SegMap(logits.argmax(0)), SegMap(noisy.argmax(0)), evidence=seg_evidence(logits))
    assert result.equal


@pytest.mark.parametrize('name', SEG_FAULTS)
def test_fault_in_the_label_map(logits: np.ndarray, name: str) -> None:
    out = SegMap(SEG_FAULTS[name](logits).astype(np.int64))
    result = compare_seg_map(SegMap(logits.argmax(0)), out, evidence=seg_evidence(logits), num_classes=CLASSES)
    assert result.verdict == 'unequal' and result.clear_pixels > 100


def test_one_clear_pixel_of_the_label_map(logits: np.ndarray) -> None:
    ref, evidence = SegMap(logits.argmax(0)), seg_evidence(logits)
    assert not evidence.undecided[100, 100]
    out = SegMap(ref.seg_map.copy())
    out.seg_map[100, 100] = (out.seg_map[100, 100] + 1) % CLASSES
    assert compare_seg_map(ref, out, evidence=evidence, num_classes=CLASSES).clear_pixels == 1
