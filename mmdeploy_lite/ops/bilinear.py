"""Bilinear sampling as a weighted sum of four rows of a table, shared by the operators that sample feature maps."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def as_table(features: Tensor) -> Tensor:
    """Lay out feature maps (B, C, H, W) as one row per pixel: (B * H * W, C)."""
    # A single image would be a view with strides of a plane, several times slower to sum rows of.
    return features.permute(0, 2, 3, 1).reshape(-1, features.size(1)).contiguous()


def from_table(table: Tensor, size: torch.Size) -> Tensor:
    """The inverse of :func:`as_table`, for feature maps of the given size (B, C, H, W)."""
    batch, channels, height, width = size
    return table.reshape(batch, height, width, channels).permute(0, 3, 1, 2)


def corners_clamped(pos: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The two pixels around a position along one axis and their weights, under the border rule of RoIAlign.

    Positions within [-1, size] count, moved to [0, size - 1]; any other (also NaN) has weights of zero.

    Args:
        pos (Tensor): Positions of any shape, in pixels; pixel i lies at i.
        size (int): Pixels along the axis.

    Returns:
        tuple: Indices (..., 2) int64 within [0, size - 1], and weights (..., 2) of the type of ``pos``.
    """
    inside = (pos >= -1) & (pos <= size)
    pos = torch.where(inside, pos, torch.zeros_like(pos)).clamp(0, size - 1)
    low = pos.floor()
    part = pos - low
    low = low.long()
    index = torch.stack([low, (low + 1).clamp(max=size - 1)], dim=-1)
    weight = torch.stack([1 - part, part], dim=-1) * inside.unsqueeze(-1)
    return index, weight


def corners_zero_padded(pos: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The two pixels around a position along one axis and their weights, where pixels outside are zero.

    Differentiable in ``pos``; the derivative is zero from -1 down and from ``size`` up. A NaN gives NaN weights.

    Args:
        pos (Tensor): Positions of any shape, in pixels; pixel i lies at i.
        size (int): Pixels along the axis.

    Returns:
        tuple: Indices (..., 2) int64 within [0, size - 1], and weights (..., 2) of the type of ``pos``.
    """
    inside = (pos > -1) & (pos < size)
    pos = pos.clamp(-2, size + 1)  # infinity has no fractional part
    low = pos.detach().floor()
    part = pos - low
    index = torch.stack([low, low + 1], dim=-1).long()
    exists = (index >= 0) & (index < size) & inside.unsqueeze(-1)
    return index.clamp(0, size - 1), torch.stack([1 - part, part], dim=-1) * exists


def weighted_rows(table: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """Sum rows of a table, without a copy of each row.

    Args:
        table (Tensor): (R, C).
        index (Tensor): (N, S) int64.
        weight (Tensor): (N, S).

    Returns:
        Tensor: (N, C), ``sum_s weight[n, s] * table[index[n, s]]``.
    """
    if index.numel() == 0:
        return table.new_zeros(len(index), table.size(1))
    return F.embedding_bag(index, table, mode='sum', per_sample_weights=weight)
