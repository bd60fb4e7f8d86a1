"""Layers of mmcv.ops that are not made of standard operators: attention, corner pooling, masked convolution."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..export.operators import forget_sizes
from ..export.shapes import at_least, axis_size, python_int, python_shape, static_size
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter


@REWRITERS.register_module()
class MultiScaleDeformableAttention(FunctionRewriter):
    """The same samples (https://arxiv.org/abs/2010.04159), the levels cut out at traced places.

    The original splits by the levels' sizes as Python numbers, and iterates over a tensor of them.
    """

    target = 'mmcv.ops.multi_scale_deform_attn.multi_scale_deformable_attn_pytorch'

    def __call__(
        self,
        origin: Callable,
        value: Tensor,
        value_spatial_shapes: Tensor,
        sampling_locations: Tensor,
        attention_weights: Tensor,
    ) -> Tensor:
        batch, _, heads, channels = python_shape(value)
        levels, points = python_shape(sampling_locations)[3:5]
        queries = sampling_locations.shape[1]
        grids = 2 * sampling_locations - 1
        sampled, start = [], 0
        for level in range(levels):
            height, width = value_spatial_shapes[level, 0], value_spatial_shapes[level, 1]
            end = start + height * width
            pixels = value[:, start:end].flatten(2).transpose(1, 2).reshape(batch * heads, channels, height, width)
            grid = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)
            sampled.append(F.grid_sample(pixels, grid, align_corners=False))
            start = end
        weights = attention_weights.transpose(1, 2).reshape(batch * heads, 1, queries, levels * points)
        output = (torch.stack(sampled, dim=-2).flatten(-2) * weights).sum(-1)
        return output.view(batch, heads * channels, queries).transpose(1, 2)


@REWRITERS.register_module()
class Conv2dAdaptivePadding(FunctionRewriter):
    """Pads by traced amounts, those of ``SAME`` in TensorFlow; the original makes Python numbers of sizes."""

    target = 'mmcv.cnn.bricks.conv2d_adaptive_padding.Conv2dAdaptivePadding.forward'

    def __call__(self, origin: Callable, conv: Any, x: Tensor) -> Tensor:
        size = static_size(x) or x.shape[-2:]
        pads: list[Any] = []
        for axis in (1, 0):  # as F.pad has them
            stride, extent = conv.stride[axis], (conv.kernel_size[axis] - 1) * conv.dilation[axis]
            pad = extent
            if stride > 1:
                cells = (size[axis] + (stride - 1)) // stride
                pad = (cells - 1) * stride + extent + 1 - size[axis]
                pad = at_least(pad, 0)
            pads += [pad // 2, pad - pad // 2]
        return F.conv2d(F.pad(x, pads), conv.weight, conv.bias, conv.stride, conv.padding, conv.dilation, conv.groups)


@REWRITERS.register_module()
class MergeCellResize(FunctionRewriter):
    """Brings a level of a pyramid to the size of another one; the original compares traced sizes, and pools by a kernel
    that depends on them.

    Which of two levels is the larger one is the same for every image.
    """

    target = 'mmcv.ops.merge_cells.BaseMergeCell._resize'

    def __call__(self, origin: Callable, cell: Any, x: Tensor, size: Any) -> Tensor:
        here, there = python_shape(x)[-2:], tuple(python_int(extent) for extent in size)
        if here == there:
            return x
        if here < there:
            return F.interpolate(x, size=tuple(size), mode=cell.upsample_mode)
        # before the exporter takes sizes of what was made of it for known
        counts = [axis_size(x, axis) for axis in (2, 3)]
        for axis, count, cells in zip((2, 3), counts, size, strict=True):
            x = _window_maxima(x, axis, count, cells)
        return x if static_size(x) else forget_sizes(x, (2, 3))


@REWRITERS.register_module()
class MergeCellForward(FunctionRewriter):
    """Says which of two levels is the larger one, as :class:`MergeCellResize` does; the original takes the ``max`` of
    traced sizes.
    """

    target = 'mmcv.ops.merge_cells.BaseMergeCell.forward'

    def __call__(self, origin: Callable, cell: Any, x1: Tensor, x2: Tensor, out_size: Any = None) -> Tensor:
        if out_size is None:
            out_size = max(x1, x2, key=lambda level: python_shape(level)[2:]).shape[2:]
        return origin(cell, x1, x2, out_size)


def _window_maxima(x: Tensor, axis: int, count: Any, cells: Any) -> Tensor:
    """Maxima of ``cells`` windows of one size along an axis, zeros before and after where they are larger than it."""
    if isinstance(count, Tensor) and not isinstance(cells, Tensor):
        cells = torch.full_like(count, cells)
    kernel = (count + cells - 1) // cells
    before = (kernel * cells - count) // 2
    place = torch.arange(kernel * cells, device=x.device) - before
    inside = ((place >= 0) & (place < count)).reshape(-1, *[1] * (3 - axis))
    looked_up = torch.index_select(x, axis, place.clamp(min=0).clamp(max=count - 1))
    return torch.where(inside, looked_up, torch.zeros_like(looked_up)).unflatten(axis, (cells, kernel)).amax(axis + 1)


@REWRITERS.register_module()
class CornerPool(FunctionRewriter):
    """The running maximum, by maxima with itself moved by 1, 2, 4, ... positions; ONNX has no ``cummax``.

    As many of these as the feature map has sizes to double; of dynamic size enough for 4096 positions, which at the
    stride of 4 that these heads have is an image of 16384 pixels.
    """

    target = 'mmcv.ops.corner_pool.CornerPool.forward'

    def __call__(self, origin: Callable, pool: Any, x: Tensor) -> Tensor:
        dim, backwards = pool.cummax_dim_flip[pool.mode]
        size = static_size(x)
        steps = 12 if size is None else math.ceil(math.log2(size[dim - 2]))
        for step in range(steps):
            moved = 2**step
            pads = [0, 0, 0, 0]
            pads[2 * (3 - dim) + backwards] = moved
            padded = F.pad(x, pads, value=-math.inf)
            kept = slice(moved, None) if backwards else slice(None, -moved)
            x = torch.maximum(x, padded[:, :, kept] if dim == 2 else padded[:, :, :, kept])
        return x


@REWRITERS.register_module()
class MaskedConv2d(FunctionRewriter):
    """The convolution everywhere, and zero where the mask has nothing; the original computes the others only."""

    target = 'mmcv.ops.masked_conv.MaskedConv2d.forward'

    def __call__(self, origin: Callable, conv: Any, input: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return origin(conv, input)
        output = F.conv2d(input, conv.weight, conv.bias, padding=conv.padding)
        return torch.where(mask[None] > 0, output, torch.zeros_like(output))
