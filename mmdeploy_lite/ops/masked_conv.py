"""Convolution at chosen positions only: the gathering and the scattering around one matrix product.

Of Guided Anchoring (https://arxiv.org/abs/1901.03278), which computes its scores only where it expects objects.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ['masked_col2im_forward', 'masked_im2col_forward']


def masked_im2col_forward(
    features: Tensor,
    mask_h_idx: Tensor,
    mask_w_idx: Tensor,
    data_col: Tensor,
    kernel_h: int,
    kernel_w: int,
    pad_h: int,
    pad_w: int,
) -> None:
    """Gather the kernel's windows at the chosen positions, into ``data_col``.

    Args:
        features (Tensor): (1, C, H, W).
        mask_h_idx (Tensor): (P,) int64, row of each position in the result.
        mask_w_idx (Tensor): (P,) int64, its column.
        data_col (Tensor): (C * kernel_h * kernel_w, P), written.
        kernel_h (int): Rows of the kernel.
        kernel_w (int): Columns of the kernel.
        pad_h (int): Zeros above and below.
        pad_w (int): Zeros left and right.
    """
    padded = F.pad(features[0], (pad_w, pad_w, pad_h, pad_h))
    rows = mask_h_idx + torch.arange(kernel_h, device=features.device)[:, None]
    columns = mask_w_idx + torch.arange(kernel_w, device=features.device)[:, None]
    data_col.copy_(padded[:, rows[:, None], columns[None]].reshape(data_col.shape))


def masked_col2im_forward(
    col: Tensor, mask_h_idx: Tensor, mask_w_idx: Tensor, im: Tensor, height: int, width: int, channels: int
) -> None:
    """Put the columns at their positions, into ``im``.

    Args:
        col (Tensor): (channels, P).
        mask_h_idx (Tensor): (P,) int64, row of each position.
        mask_w_idx (Tensor): (P,) int64, its column.
        im (Tensor): (1, channels, height, width), written at these positions.
        height (int): Of ``im``.
        width (int): Of ``im``.
        channels (int): Of ``im``.
    """
    im[0, :, mask_h_idx, mask_w_idx] = col
