"""What the model's data preprocessor does, in NumPy, for files that leave it to the program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


class Preprocess:
    """Channel swap, normalization and padding of one image.

    Args:
        spec: ``preprocess`` of the file's metadata.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._swap = bool(spec['swap_channels'])
        self._mean, self._std = (
            None if spec[name] is None else np.array(spec[name], np.float32)[:, None, None] for name in ('mean', 'std')
        )
        self._pad_value, self._divisor, self._size = spec['pad_value'], spec['divisor'], spec['size']

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """Preprocess.

        Args:
            image: (C, h, w) uint8 or float32, 0-255, in the pipeline's channel order.

        Returns:
            (C, H, W) float32, padded right and below.
        """
        if self._swap and len(image) == 3:
            image = image[::-1]
        image = image.astype(np.float32)
        if self._mean is not None:
            image = (image - self._mean) / self._std
        below, right = (
            padded - size for padded, size in zip(self.padded(image.shape[1:]), image.shape[1:], strict=True)
        )
        pads = ((0, 0), (0, below), (0, right))
        return np.ascontiguousarray(np.pad(image, pads, constant_values=self._pad_value))

    def padded(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """(H, W) that an image of (h, w) pixels is padded to."""
        height, width = shape
        if self._size is not None:
            return max(self._size[0], height), max(self._size[1], width)
        return height + -height % self._divisor, width + -width % self._divisor
