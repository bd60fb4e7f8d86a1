"""Masks of objects, brought to the image."""

from __future__ import annotations

import numpy as np


def paste_masks(masks: np.ndarray, bboxes: np.ndarray, shape: tuple[int, int], threshold: float) -> np.ndarray:
    """Bilinear samples of each object's mask over the whole image, as mmdet's ``_do_paste_mask`` takes them.

    Interpolation on a grid of rows and columns is two matrix products per object, within its box only.

    Args:
        masks: (K, mh, mw) float32 probabilities over the boxes.
        bboxes: (K, 4) float32 x1 y1 x2 y2 in pixels of the image.
        shape: (h, w) of the image.
        threshold: a pixel belongs to the object from this probability on.

    Returns:
        (K, h, w) bool.
    """
    pasted = np.full((len(masks), *shape), threshold <= 0)
    for mask, (left, top, right, bottom), whole in zip(masks, bboxes.astype(np.float32), pasted, strict=True):
        rows, row_weights = _weights(top, bottom, shape[0], mask.shape[0])
        columns, column_weights = _weights(left, right, shape[1], mask.shape[1])
        whole[rows, columns] = row_weights @ mask @ column_weights.T >= threshold
    return pasted


def _weights(start: np.float32, end: np.float32, size: int, cells: int) -> tuple[slice, np.ndarray]:
    """The pixels within one of the box along an axis, and (pixels, cells) how much each cell counts for them."""
    near = slice(max(int(np.floor(start)) - 1, 0), max(min(int(np.ceil(end)) + 1, size), 0))
    centers = np.arange(near.start, max(near.stop, near.start), dtype=np.float32) + np.float32(0.5)
    with np.errstate(divide='ignore', invalid='ignore'):
        position = (centers - start) / (end - start) * 2 - 1
    position[np.isinf(position)] = 0  # a box without extent: mmdet samples the middle of its mask there
    coordinate = ((position + 1) * cells - 1) / 2
    weights = np.maximum(1 - np.abs(coordinate[:, None] - np.arange(cells, dtype=np.float32)), 0)
    return slice(near.start, near.start + len(centers)), weights.astype(np.float32)
