"""Compare instance masks where PyTorch is sure of them."""

from __future__ import annotations

import numpy as np

_CHUNK = 1 << 14
"""Pixels per matrix product: bounds the memory at a few MB per hundred masks, and keeps float32 counts exact."""


def clear_differences(ref: np.ndarray, out: np.ndarray, undecided: np.ndarray | None) -> np.ndarray:
    """Count, for each pair of masks, the pixels that differ although the reference is sure of them.

    Args:
        ref: (R, H, W) bool.
        out: (C, H, W) bool.
        undecided: (R, H, W) bool, pixels that may differ; None means none may.

    Returns:
        (R, C) int64.
    """
    ref, out = ref.reshape(len(ref), -1), out.reshape(len(out), -1)
    undecided = None if undecided is None else undecided.reshape(len(ref), -1)
    total = np.zeros((len(ref), len(out)), np.int64)
    for start in range(0, ref.shape[1], _CHUNK):
        part = slice(start, start + _CHUNK)
        inside, outside = ref[:, part], ~ref[:, part]
        if undecided is not None:
            inside, outside = inside & ~undecided[:, part], outside & ~undecided[:, part]
        theirs = out[:, part]
        # Inside here and outside there, plus the other way round, for all pairs at once.
        count = inside.astype(np.float32) @ (~theirs).astype(np.float32).T
        count += outside.astype(np.float32) @ theirs.astype(np.float32).T
        total += count.astype(np.int64)
    return total
