"""Models cut down to what a case needs, and what every case does with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from mmdeploy_lite.check.verify import Verification
from mmdeploy_lite.tasks import Sample
from mmdeploy_lite.testing.exporting import Exported, export
from mmdeploy_lite.testing.images import empty, scene
from mmdeploy_lite.testing.models import TestModel
from mmdeploy_lite.testing.tiny import SCALE, TINY, tiny

__all__ = ['IMAGES', 'SCALE', 'TINY', 'assert_standard', 'exported_equal', 'references', 'tiny']

IMAGES = {
    'landscape': scene(1, 150, 190),
    'portrait': scene(2, 190, 150),
    'other': scene(3, 150, 190),
    'empty': empty(150, 190),
}


def exported_equal(
    model: TestModel,
    samples: Sequence[Sample],
    folder: Path,
    traced: Sample | None = None,
    **options: Any,
) -> tuple[Exported, Verification]:
    """Export on ``traced``, or the first of ``samples``; the file is of standard operators and equal on all of them."""
    traced = samples[0] if traced is None else traced
    size = model.task.batch_size
    batch = [item for item in samples if item is not traced and model.task.fit_together(traced, item)] or [traced]
    batch = batch * size
    exported = export(model.task, [traced, *batch[: size - 1], *batch[-size:]], folder, **options)
    assert_standard(exported.graph.model)
    verification = exported.verify(samples)
    assert {item.image: item.comparison.reasons for item in verification.checks if not item.comparison.equal} == {}
    return exported, verification


def assert_standard(model: onnx.ModelProto) -> None:
    """Only the default domain, at an opset that ONNX Runtime 1.17 knows."""
    assert {node.domain for node in model.graph.node} <= {'', 'ai.onnx'}
    assert [(entry.domain, entry.version <= 20) for entry in model.opset_import] == [('', True)]


def references(verification: Verification) -> list[Any]:
    """PyTorch's answers."""
    return [reference for reference, _ in verification.answers]


@pytest.fixture
def images() -> dict[str, np.ndarray]:
    return dict(IMAGES)
