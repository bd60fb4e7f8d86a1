"""An image that the test pipeline prepares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Prepared:
    """An image on its way through the pipeline, and at its end.

    Attributes:
        image: (h, w, C) or (h, w), uint8 or float32, as the last step left it.
        original: (H, W, C) uint8, as it came.
        scale_factor: (w, h) by which the last resize scaled its input.
        name: for messages.
        border: (top, bottom, left, right) of the part that shows the original, in pixels of ``image``, where a step
            padded around it.
    """

    image: np.ndarray
    original: np.ndarray
    scale_factor: tuple[float, float]
    name: str
    border: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)

    @property
    def ori_shape(self) -> tuple[int, int]:
        """(H, W) of the original in pixels."""
        return self.original.shape[:2]

    @property
    def shape(self) -> tuple[int, int]:
        """(h, w) that the pipeline made of it, in pixels."""
        return self.image.shape[:2]

    @property
    def tensor(self) -> np.ndarray:
        """(C, h, w), contiguous, as the library's pipeline packs it."""
        image = self.image if self.image.ndim == 3 else self.image[..., None]
        return np.ascontiguousarray(image.transpose(2, 0, 1))
