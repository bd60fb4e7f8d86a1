"""Images made from a seed: something for a network to look at, without files."""

from __future__ import annotations

import cv2
import numpy as np


def scene(seed: int, height: int, width: int) -> np.ndarray:
    """Smooth background, noise, and shapes of many sizes and colors.

    Args:
        seed: decides everything.
        height: in pixels.
        width: in pixels.

    Returns:
        (height, width, 3) uint8 BGR.
    """
    rng = np.random.default_rng(seed)
    coarse = rng.uniform(0, 255, (4, 5, 3)).astype(np.float32)
    image = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    for _ in range(int(rng.integers(12, 25))):
        center = (int(rng.integers(width)), int(rng.integers(height)))
        axes = tuple(int(value) for value in rng.integers(5, max(min(height, width) // 4, 6), 2))
        color = tuple(float(value) for value in rng.uniform(0, 255, 3))
        if rng.random() < 0.5:
            cv2.ellipse(image, center, axes, float(rng.uniform(0, 180)), 0, 360, color, -1)
        else:
            corner = (center[0] + axes[0], center[1] + axes[1])
            cv2.rectangle(image, center, corner, color, -1)
    return np.clip(image + rng.normal(0, 12, image.shape), 0, 255).astype(np.uint8)


def faint(height: int, width: int) -> np.ndarray:
    """Gray with a little noise, for models that find as much in any image.

    Where nothing differs, as in :func:`empty`, their scores are equal, and which of them NMS keeps is chance.
    """
    noise = np.random.default_rng(0).normal(0, 3, (height, width, 3))
    return np.clip(empty(height, width) + noise, 0, 255).astype(np.uint8)


def empty(height: int, width: int, value: int = 114) -> np.ndarray:
    """One gray value everywhere: (height, width, 3) uint8."""
    return np.full((height, width, 3), value, np.uint8)
