"""Answers drawn into pictures."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from .results import Detections, SegMap

_FONT = cv2.FONT_HERSHEY_SIMPLEX
_OPACITY = 0.5


def draw(
    image: np.ndarray, result: Detections | SegMap, palette: Sequence[tuple[int, int, int]], score_thr: float = 0.3
) -> np.ndarray:
    """A copy of an image with the answer in it.

    Args:
        image: (h, w, 3) BGR or (h, w) gray, uint8, of the size that the answer is in.
        result: of the image.
        palette: (r, g, b) of each class.
        score_thr: objects below it are left out.

    Returns:
        (h, w, 3) uint8 BGR.
    """
    picture = (
        cv2.cvtColor(image, cv2.COLOR_GRAY2BGR) if image.ndim == 2 or image.shape[2] == 1 else image[..., :3].copy()
    )
    if isinstance(result, SegMap):
        return _blend(picture, _colors(palette, result.seg_map))
    shown = np.flatnonzero(result.scores >= score_thr)[::-1]  # the best on top
    names = result.names
    if result.masks is not None:
        for index in shown:
            color = _colors(palette, result.labels[index : index + 1])
            picture[result.masks[index]] = _blend(picture[result.masks[index]], color)
    height, width = picture.shape[:2]
    thickness = max(round(min(height, width) / 200), 1)
    for index in shown:
        color = tuple(int(value) for value in _colors(palette, result.labels[index : index + 1])[0])
        # the image's own border is inside the picture
        box = np.clip(result.bboxes[index], 0, (width - 1, height - 1, width - 1, height - 1))
        left, top, right, bottom = (int(value) for value in box.round())
        cv2.rectangle(picture, (left, top), (right, bottom), color, thickness)
        _label(picture, f'{names[index]} {result.scores[index]:.2f}', (left, top), color)
    return picture


def _label(picture: np.ndarray, text: str, corner: tuple[int, int], color: tuple[int, int, int]) -> None:
    """Text on a ground of the object's color, above the corner, or below it where there is no room."""
    size = min(max(min(picture.shape[:2]) / 900, 0.35), 1.5)
    weight = 2 if size > 0.9 else 1
    text = text.encode('ascii', 'replace').decode()  # OpenCV's fonts have no other letters
    (width, height), baseline = cv2.getTextSize(text, _FONT, size, weight)
    left = min(max(corner[0], 0), max(picture.shape[1] - width, 0))
    bottom = corner[1] if corner[1] - height - baseline >= 0 else max(corner[1], 0) + height + baseline
    cv2.rectangle(picture, (left, bottom - height - baseline), (left + width, bottom), color, cv2.FILLED)
    bright = 0.114 * color[0] + 0.587 * color[1] + 0.299 * color[2] > 140
    ink = (0, 0, 0) if bright else (255, 255, 255)
    cv2.putText(picture, text, (left, bottom - baseline), _FONT, size, ink, weight, cv2.LINE_AA)


def _colors(palette: Sequence[tuple[int, int, int]], labels: np.ndarray) -> np.ndarray:
    """BGR of each label, uint8; those without a color of their own are white."""
    table = np.full((max(len(palette), int(labels.max(initial=0)) + 1), 3), 255, np.uint8)
    if len(palette):
        table[: len(palette)] = np.asarray(palette, np.uint8)[:, ::-1]
    return table[labels]


def _blend(pixels: np.ndarray, color: np.ndarray) -> np.ndarray:
    return (pixels * (1 - _OPACITY) + color * _OPACITY + 0.5).astype(np.uint8)
