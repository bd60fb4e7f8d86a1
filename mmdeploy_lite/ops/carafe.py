"""CARAFE: upsampling in which every output pixel has a kernel of its own over the input.

Wang et al., CARAFE: Content-Aware ReAssembly of FEatures, https://arxiv.org/abs/1905.02188, with the conventions of
mmcv's kernel.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

__all__ = ['carafe_forward', 'carafe_naive_forward']


def carafe_naive_forward(
    features: Tensor, masks: Tensor, output: Tensor, kernel_size: int, group_size: int, scale_factor: int
) -> None:
    """Reassemble features, into ``output``.

    Args:
        features (Tensor): (N, C, H, W); zero outside.
        masks (Tensor): (N, group_size * kernel_size ** 2, H * scale_factor, W * scale_factor), the kernel of each
            output pixel, row by row, over the input pixels around the one that it lies in.
        output (Tensor): (N, C, H * scale_factor, W * scale_factor), written.
        kernel_size (int): Odd, in pixels of the input.
        group_size (int): Groups of channels with kernels of their own.
        scale_factor (int): Output pixels per input pixel, along each axis.
    """
    output.copy_(reassemble(features, masks, kernel_size, group_size, scale_factor))


def carafe_forward(
    features: Tensor,
    masks: Tensor,
    rfeatures: Tensor,
    routput: Tensor,
    rmasks: Tensor,
    output: Tensor,
    kernel_size: int,
    group_size: int,
    scale_factor: int,
) -> None:
    """As :func:`carafe_naive_forward`; the arguments in between are the compiled kernel's workspace."""
    carafe_naive_forward(features, masks, output, kernel_size, group_size, scale_factor)


def reassemble(features: Tensor, masks: Tensor, kernel_size: int, group_size: int, scale_factor: int) -> Tensor:
    """:func:`carafe_naive_forward` as a sum over the kernel's taps: each is the input shifted, times its weights.

    Every output pixel of an input pixel reads the same inputs, so nothing is upsampled: the weights have the axes
    (H, scale_factor, W, scale_factor).

    Returns:
        (N, C, H * scale_factor, W * scale_factor).
    """
    batch, channels, height, width = features.shape
    kernels = masks.reshape(batch, group_size, kernel_size**2, height, scale_factor, width, scale_factor)
    reach = kernel_size // 2
    padded = F.pad(features, (reach, reach, reach, reach))
    grouped = padded.reshape(batch, group_size, channels // group_size, height + 2 * reach, width + 2 * reach)
    total = None
    for tap in range(kernel_size**2):
        y, x = divmod(tap, kernel_size)
        shifted = grouped[:, :, :, y : y + height, None, x : x + width, None]
        part = shifted * kernels[:, :, tap, None]
        total = part if total is None else total + part
    return total.reshape(batch, channels, height * scale_factor, width * scale_factor)
