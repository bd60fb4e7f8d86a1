"""What the compared images did not exercise of the way an image goes into the network and its answer comes back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .answers import Detections


def unprepared(task: Any, samples: Sequence[Any], references: Sequence[Any]) -> list[str]:
    """One line per step that no image needed.

    Args:
        task: a :class:`mmdeploy_lite.tasks.BaseTask`.
        samples: the images.
        references: PyTorch's answers.
    """
    missing = []
    spec = task.preprocess_spec
    if task.preprocess == 'graph' and spec.pads and not any(_padded(spec, *sample.shape) for sample in samples):
        missing.append('no image is padded by the data preprocessor: all come out of the pipeline as large as it asks')
    if 'scale_factor' in task.input_names:
        factors = [np.float32(sample.data_sample.metainfo.get('scale_factor', (1, 1))[:2]) for sample in samples]
        if all(width == height for width, height in factors):
            missing.append('every image is scaled by the same factor in width and height')
        if all((factor == 1).all() for factor in factors):
            missing.append('no image is scaled')
    if 'ori_shape' in task.input_names and all(sample.image.shape[0] == sample.image.shape[1] for sample in samples):
        missing.append('every image is square: its height and width could be swapped')
    boxes = [answer for answer in references if isinstance(answer, Detections)]
    if len(boxes) == len(samples) and task.rescale and 'scale_factor' in task.input_names:
        reached = [_reaches(answer, sample) for answer, sample in zip(boxes, samples, strict=True)]
        if any(len(answer) for answer in boxes) and not any(reached):
            missing.append('no box reaches the right or lower border of the image, where boxes are clipped')
    if getattr(task, 'slides', False):
        crop = task.model.test_cfg.crop_size
        if all(height <= crop[0] and width <= crop[1] for height, width in (sample.shape for sample in samples)):
            missing.append('every image is a single window of slide inference')
    return missing


def _padded(spec: Any, height: int, width: int) -> bool:
    if spec.size is not None:
        return height < spec.size[0] or width < spec.size[1]
    return bool(height % spec.divisor or width % spec.divisor)


def _reaches(answer: Detections, sample: Any) -> bool:
    """A box ends where ``image`` does, to the rounding of the scale."""
    height, width = sample.shape
    sx, sy = sample.data_sample.metainfo.get('scale_factor', (1, 1))[:2]
    ends = answer.bboxes[:, 2:] * np.float32([sx, sy])
    return bool((np.abs(ends - np.float32([width, height])) < 1e-2).any())
