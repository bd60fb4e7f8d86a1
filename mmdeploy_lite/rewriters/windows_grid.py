"""Where the windows of slide inference lie."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class WindowGrid(NamedTuple):
    """Where the windows of slide inference lie along one axis: they all have one size."""

    starts: list[int]
    window: int
    size: int

    @classmethod
    def of(cls, size: int, crop: int, stride: int) -> WindowGrid:
        """mmseg's grid: every ``stride`` pixels, the last window moved back into the image, none larger than the
        image.
        """
        count = max(size - crop + stride - 1, 0) // stride + 1
        window = min(crop, size)
        return cls([min(index * stride, size - window) for index in range(count)], window, size)

    def counts(self) -> np.ndarray:
        """(size,) how many windows cover each pixel."""
        counts = np.zeros(self.size, dtype=np.float32)
        for start in self.starts:
            counts[start : start + self.window] += 1
        return counts

    def strips(self) -> list[tuple[int, int, list[int]]]:
        """Start, end and the windows that cover it, of each part of the axis between two neighbouring borders."""
        borders = sorted({*self.starts, *(start + self.window for start in self.starts)})
        return [
            (begin, end, [i for i, start in enumerate(self.starts) if start <= begin and end <= start + self.window])
            for begin, end in zip(borders, borders[1:], strict=False)
        ]
