"""The images that a file is checked on: the user's, and what can be made of them."""

from __future__ import annotations

import cv2
import numpy as np


def variants(name: str, image: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Images of the same size that ask other questions than the image itself.

    Args:
        name: of the image, for reports.
        image: (H, W, 3) uint8 BGR.

    Returns:
        Name and image: mirrored (objects elsewhere), tiled (four times as many and smaller objects), with noise
        (other scores), and an empty one (nothing to find).
    """
    height, width = image.shape[:2]
    noise = np.random.default_rng(0).normal(0, 25, image.shape)
    tiled = cv2.resize(np.tile(image, (2, 2, 1)), (width, height), interpolation=cv2.INTER_AREA)
    return [
        (f'{name} (mirrored)', np.ascontiguousarray(image[:, ::-1])),
        (f'{name} (tiled)', tiled),
        (f'{name} (noise)', np.clip(image + noise, 0, 255).astype(np.uint8)),
        (f'{width}x{height} (empty)', np.full_like(image, 114)),
    ]


def other_sizes(shape: tuple[int, int], least: tuple[int, int] = (1, 1), larger: bool = False) -> list[tuple[int, int]]:
    """(h, w) to check a file of dynamic size on: turned by 90 degrees, and smaller with another aspect ratio.

    Multiples of 32, which every network with a feature pyramid takes.

    Args:
        shape: (h, w) that was traced.
        least: (h, w) that the file takes at least.
        larger: and larger with another one, for exporters that take a size for a limit.
    """
    height, width = shape
    turned = (_round(width), _round(height))
    if turned == shape:  # a square looks the same turned
        turned = (_round(height), _round(width * 0.7))
    smaller = (_round(height * 0.8), _round(width * 0.55))
    wanted = [turned, smaller, *[(_round(height * 1.3), _round(width * 1.1))] * larger]
    sizes = [tuple(max(pair) for pair in zip(size, least, strict=True)) for size in wanted]
    if set(sizes) <= {shape, least}:  # of windows that are as large as the image, several
        sizes.append((_round(least[0] * 1.6), _round(least[1] * 1.3)))
    return [size for size in dict.fromkeys(sizes) if size != shape]


def _round(size: float) -> int:
    return max(round(size / 32), 2) * 32
