"""Deformable convolution, composed of standard operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..export.shapes import python_shape, size_tensor
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter

Pair = int | tuple[int, int]


@REWRITERS.register_module()
class DeformConv(FunctionRewriter):
    """One GridSample of all kernel taps and one convolution over them; mmcv's own export gives an operator of its
    domain.

    Deformable convolution (https://arxiv.org/abs/1703.06211) samples the input bilinearly at each kernel tap's place
    plus its offset, zero outside, and sums the samples with the kernel's weights. With ``align_corners=True``
    GridSample's coordinates are pixels but for a scale.
    """

    target = 'mmcv.ops.deform_conv.deform_conv2d'

    def __call__(
        self,
        origin: Callable,
        input: Tensor,
        offset: Tensor,
        weight: Tensor,
        stride: Pair = 1,
        padding: Pair = 0,
        dilation: Pair = 1,
        groups: int = 1,
        deform_groups: int = 1,
        bias: bool = False,
        im2col_step: int = 32,
    ) -> Tensor:
        return deform_conv(input, offset, None, weight, None, stride, padding, dilation, groups, deform_groups)


@REWRITERS.register_module()
class ModulatedDeformConv(FunctionRewriter):
    """As :class:`DeformConv`, with a weight for every sample (https://arxiv.org/abs/1811.11168)."""

    target = 'mmcv.ops.modulated_deform_conv.modulated_deform_conv2d'

    def __call__(
        self,
        origin: Callable,
        input: Tensor,
        offset: Tensor,
        mask: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Pair = 1,
        padding: Pair = 0,
        dilation: Pair = 1,
        groups: int = 1,
        deform_groups: int = 1,
    ) -> Tensor:
        return deform_conv(input, offset, mask, weight, bias, stride, padding, dilation, groups, deform_groups)


def deform_conv(
    input: Tensor,
    offset: Tensor,
    mask: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    deform_groups: int,
) -> Tensor:
    """Deformable convolution.

    Args:
        input: (N, C, H, W).
        offset: (N, deform_groups * taps * 2, h, w): y and x of each tap in pixels of ``input``.
        mask: (N, deform_groups * taps, h, w), or None.
        weight: (O, C / groups, kh, kw).
        bias: (O,), or None.
        stride: (y, x).
        padding: (y, x).
        dilation: (y, x).
        groups: of the convolution.
        deform_groups: groups of channels with offsets of their own.

    Returns:
        (N, O, h, w).
    """
    batch, channels = python_shape(input)[:2]
    out_channels, _, kh, kw = python_shape(weight)
    taps = kh * kw
    geometry = (weight, _pair(stride), _pair(padding), _pair(dilation))
    if python_shape(offset)[-2:] == _output_size(python_shape(input)[-2:], *geometry):
        height, width = offset.shape[-2:]
    else:  # of another map: as mmcv's kernel does, the first numbers of each image are read as if they were of this one
        height, width = _output_size(input.shape[-2:], *geometry)
        offset = offset.flatten(1)[:, : deform_groups * taps * 2 * height * width]
        mask = None if mask is None else mask.flatten(1)[:, : deform_groups * taps * height * width]
    steps = [_positions(*args) for args in zip((height, width), *map(_pair, (stride, padding)), strict=True)]
    (dy, dx), (oy, ox) = _pair(dilation), steps
    # (groups of images, taps, h, w): where each tap samples, in pixels
    offset = offset.reshape(batch * deform_groups, taps, 2, height, width)
    rows = torch.arange(kh, device=input.device).to(input).mul(dy).repeat_interleave(kw)
    columns = torch.arange(kw, device=input.device).to(input).mul(dx).repeat(kh)
    y = offset[:, :, 0] + rows[:, None, None] + oy.to(input)[:, None]
    x = offset[:, :, 1] + columns[:, None, None] + ox.to(input)
    in_height, in_width = (size_tensor(input, axis).to(input) for axis in (2, 3))
    # one pixel of padding keeps the scale defined for an input of one pixel
    grid = torch.stack([(x + 1) * 2 / (in_width + 1) - 1, (y + 1) * 2 / (in_height + 1) - 1], dim=-1)
    grouped = F.pad(input, (1, 1, 1, 1)).flatten(0, 1)
    grouped = grouped.reshape(batch * deform_groups, channels // deform_groups, *grouped.shape[-2:])
    sampled = F.grid_sample(grouped, grid.flatten(1, 2), align_corners=True)
    sampled = sampled.reshape(batch * deform_groups, channels // deform_groups, taps, height, width)
    if mask is not None:
        sampled = sampled * mask.reshape(batch * deform_groups, 1, taps, height, width)
    columns_in = sampled.reshape(batch, channels * taps, height, width)
    if isinstance(weight, torch.nn.Parameter):
        return F.conv2d(columns_in, weight.reshape(out_channels, -1, 1, 1), bias, groups=groups)
    # ONNX has no convolution with a kernel whose shape the exporter cannot tell, such as one made while running
    columns_in = columns_in.reshape(batch, groups, channels * taps // groups, -1)
    output = weight.reshape(groups, out_channels // groups, -1) @ columns_in
    output = output.reshape(batch, out_channels, height, width)
    return output if bias is None else output + bias[:, None, None]


def _output_size(size: tuple[Any, Any], weight: Tensor, stride: Pair, padding: Pair, dilation: Pair) -> tuple[Any, Any]:
    """(h, w) of the output for (H, W) of the input, Python or traced numbers."""
    kernel = python_shape(weight)[-2:]
    height, width = (
        (size[axis] + (2 * padding[axis] - dilation[axis] * (kernel[axis] - 1) - 1)) // stride[axis] + 1
        for axis in (0, 1)
    )
    return height, width


def _pair(value: Pair) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _positions(size: int | Tensor, stride: int, padding: int) -> Tensor:
    """(size,) where the first tap of each output pixel lies along one axis, in pixels of the input."""
    return torch.arange(size) * stride - padding
