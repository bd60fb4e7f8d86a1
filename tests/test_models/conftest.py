"""Whole models of the libraries' configs: calibrated weights, different images, an empty one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mmdeploy_lite.check.verify import Verification
from mmdeploy_lite.tasks import Sample
from mmdeploy_lite.testing.exporting import export, remember_references
from mmdeploy_lite.testing.images import empty, scene
from mmdeploy_lite.testing.models import TestModel, count_proposals, find_busy


@pytest.fixture
def images() -> dict[str, np.ndarray]:
    """Larger than what the network sees, so that answers are scaled back; the last shows nothing."""
    return {
        'landscape': scene(11, 400, 500),
        'portrait': scene(12, 500, 400),
        'wide': scene(13, 360, 520),
        'empty': empty(400, 500),
    }


def check_detector(
    model: TestModel, images: dict[str, np.ndarray], folder: Path, has_threshold: bool = True
) -> list[Verification]:
    """Export on the image with the fewest proposals and on that with the most; compare each file on every image."""
    samples = model.samples(images)
    nothing = samples[-1]
    busy = find_busy(model, samples[:-1], nothing if has_threshold else None)
    samples.append(model.sample_at('other size', images['portrait'], (352, 256)))
    assert len({sample.shape for sample in samples}) > 1 and all(min(sample.shape) >= 256 for sample in samples)
    remember_references(model.task)
    counts = {sample.name: count_proposals(model.task, sample) for sample in samples}
    few, many = (pick(samples, key=lambda sample: counts[sample.name]) for pick in (min, max))
    assert not has_threshold or counts[few.name] < counts[many.name], counts
    found = []
    for traced in (few, many) if has_threshold else (busy, nothing):
        exported = export(model.task, [traced, _another(traced, samples)], folder)
        found.append(check(exported.verify(samples)))
        del exported
    answers = {sample.name: reference for sample, (reference, _) in zip(samples, found[0].answers, strict=True)}
    assert len(answers[busy.name]) > 20
    assert not has_threshold or len(answers[nothing.name]) == 0
    return found


def check(verification: Verification) -> Verification:
    """Every image is equal."""
    bad = {item.image: item.comparison.reasons for item in verification.checks if not item.comparison.equal}
    assert not bad
    return verification


def _another(traced: Sample, samples: list[Sample]) -> Sample:
    return next((item for item in samples if item is not traced and item.shape == traced.shape), traced)
