"""Primitives of mmdet's transformer detectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..export.shapes import python_shape
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter


@REWRITERS.register_module()
class DETRPreTransformer(FunctionRewriter):
    """Tells ``pre_transformer`` in Python numbers that no image of the batch is padded.

    It compares each image's size with the batch's to do without a mask; the comparison of traced sizes would be
    frozen. Where the two are one and the same number it holds for every image, and nothing else is read from them.
    With padding, whether there is a
    mask depends on the size: the original runs, and the audit names its line where the size is dynamic.
    """

    target = (
        'mmdet.models.detectors.detr.DETR.pre_transformer',
        'mmdet.models.detectors.deformable_detr.DeformableDETR.pre_transformer',
    )

    def __call__(
        self, origin: Callable, detector: Any, feats: tuple[Tensor, ...], batch_data_samples: list[Any]
    ) -> Any:
        if not all(_unpadded(sample) for sample in batch_data_samples):
            return origin(detector, feats, batch_data_samples)
        size = python_shape(feats[0])[-2:]  # any one: equal to itself is all that is asked
        return origin(detector, feats, [_Sized(size, size) for _ in batch_data_samples])


class _Sized:
    """A data sample of which only the sizes are read."""

    def __init__(self, img_shape: tuple[int, int], batch_input_shape: tuple[int, int]) -> None:
        self.img_shape = img_shape
        self.batch_input_shape = batch_input_shape


def _unpadded(sample: Any) -> bool:
    return all(size is padded for size, padded in zip(sample.img_shape, sample.batch_input_shape, strict=True))
