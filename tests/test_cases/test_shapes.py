"""Case 20: one file for every image size, or a refusal at export."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmdeploy_lite.errors import BackendError
from mmdeploy_lite.testing.images import scene
from mmdeploy_lite.testing.models import find_busy

from .conftest import exported_equal, tiny

SIZES = [(96, 128), (128, 96), (160, 224)]


@pytest.mark.parametrize(
    'name', ['RetinaNet', 'YOLOX', 'RTMDet', 'Faster R-CNN', 'Mask R-CNN', 'FCN', 'PSPNet', 'SegFormer']
)
def test_case_20_height_and_width_are_dynamic(name: str, tmp_path: Path) -> None:
    model = tiny(name)
    samples = [model.sample_at(f'{size}', scene(index, 150, 190), size) for index, size in enumerate(SIZES)]
    assert [sample.shape for sample in samples] == SIZES
    if model.task.kind == 'detections':
        find_busy(model, samples, None)
    exported, _ = exported_equal(model, samples, tmp_path)
    assert exported.session.input_shapes['image'] == [1, 3, 'height', 'width']


def test_case_20_a_fixed_size_refuses_others(tmp_path: Path) -> None:
    model = tiny('FCN')
    samples = [model.sample_at(f'{size}', scene(1, 150, 190), size) for size in SIZES]
    exported, _ = exported_equal(model, samples[:1], tmp_path, dynamic=False)
    with pytest.raises(BackendError, match="input 'image' must be 1 x 3 x 96 x 128, got 1 x 3 x 128 x 96"):
        exported.answers(samples[1])
