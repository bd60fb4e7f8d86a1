"""Deformable convolution, with and without a mask.

Dai et al., Deformable Convolutional Networks, https://arxiv.org/abs/1703.06211; Zhu et al., Deformable ConvNets v2,
https://arxiv.org/abs/1811.11168. The samples under the kernel are gathered into columns, as for an ordinary
convolution, and multiplied by the weights. Gradients come from PyTorch's differentiation of the same code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .bilinear import as_table, corners_zero_padded, weighted_rows

__all__ = [
    'deform_conv_backward_input',
    'deform_conv_backward_parameters',
    'deform_conv_forward',
    'modulated_deform_conv_backward',
    'modulated_deform_conv_forward',
]

#: Sampled values held at a time.
MAX_ELEMENTS = 2**23


class _Geometry(NamedTuple):
    """How the kernel lies on the input; pairs are (y, x)."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    deform_groups: int


def deform_conv_forward(
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    output: Tensor,
    columns: Tensor,
    ones: Tensor,
    kW: int,
    kH: int,
    dW: int,
    dH: int,
    padW: int,
    padH: int,
    dilationW: int,
    dilationH: int,
    group: int,
    deformable_group: int,
    im2col_step: int,
) -> None:
    """Convolve at shifted positions, into ``output``.

    Args:
        input (Tensor): (B, C, H, W); zero outside.
        weight (Tensor): (O, C / group, kH, kW).
        offset (Tensor): (B, deformable_group * kH * kW * 2, Ho, Wo), shifts y, x in pixels of the input, for each
            kernel position in row-major order.
        output (Tensor): (B, O, Ho, Wo), written.
        columns (Tensor): A buffer of the compiled operator; not used.
        ones (Tensor): The same.
        kW (int): Kernel width; ``kH`` its height.
        dW (int): Stride along x; ``dH`` along y.
        padW (int): Padding along x; ``padH`` along y.
        dilationW (int): Dilation along x; ``dilationH`` along y.
        group (int): Groups of the convolution.
        deformable_group (int): Groups of channels with offsets of their own.
        im2col_step (int): Images at a time in the compiled operator; not used.
    """
    geometry = _Geometry((kH, kW), (dH, dW), (padH, padW), (dilationH, dilationW), group, deformable_group)
    _forward(input, offset, None, weight, None, output, geometry)


def deform_conv_backward_input(
    input: Tensor,
    offset: Tensor,
    gradOutput: Tensor,
    gradInput: Tensor,
    gradOffset: Tensor,
    weight: Tensor,
    columns: Tensor,
    kW: int,
    kH: int,
    dW: int,
    dH: int,
    padW: int,
    padH: int,
    dilationW: int,
    dilationH: int,
    group: int,
    deformable_group: int,
    im2col_step: int,
) -> None:
    """Add the gradients of input and offset to ``gradInput`` and ``gradOffset``; see :func:`deform_conv_forward`."""
    geometry = _Geometry((kH, kW), (dH, dW), (padH, padW), (dilationH, dilationW), group, deformable_group)
    _backward(gradOutput, (input, offset, None, weight, None), (gradInput, gradOffset, None, None, None), geometry)


def deform_conv_backward_parameters(
    input: Tensor,
    offset: Tensor,
    gradOutput: Tensor,
    gradWeight: Tensor,
    columns: Tensor,
    ones: Tensor,
    kW: int,
    kH: int,
    dW: int,
    dH: int,
    padW: int,
    padH: int,
    dilationW: int,
    dilationH: int,
    group: int,
    deformable_group: int,
    scale: float,
    im2col_step: int,
) -> None:
    """Add ``scale`` times the gradient of the weight to ``gradWeight``; see :func:`deform_conv_forward`."""
    geometry = _Geometry((kH, kW), (dH, dW), (padH, padW), (dilationH, dilationW), group, deformable_group)
    # The gradient of the weight does not depend on the weight.
    tensors = (input, offset, None, torch.zeros_like(gradWeight), None)
    _backward(gradOutput * scale, tensors, (None, None, None, gradWeight, None), geometry)


def modulated_deform_conv_forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    output: Tensor,
    columns: Tensor,
    kernel_h: int,
    kernel_w: int,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    group: int,
    deformable_group: int,
    with_bias: bool,
) -> None:
    """Convolve at shifted positions with a factor per sample, into ``output``.

    Arguments are those of :func:`deform_conv_forward` under other names, and:

    Args:
        bias (Tensor): (O,), only read if ``with_bias``.
        mask (Tensor): (B, deformable_group * kernel_h * kernel_w, Ho, Wo), the factors.
        with_bias (bool): Whether ``bias`` is added.

    Offsets and factors may be of a larger map than the output. Then they are not cut out of it: as mmcv's kernel does,
    the first of an image's numbers are read as if they were of the output's size. DyHead is trained that way.
    """
    offset, mask = (_first_of(values, output) for values in (offset, mask))
    geometry = _Geometry(
        (kernel_h, kernel_w),
        (stride_h, stride_w),
        (pad_h, pad_w),
        (dilation_h, dilation_w),
        group,
        deformable_group,
    )
    _forward(input, offset, mask, weight, bias if with_bias else None, output, geometry)


def modulated_deform_conv_backward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    columns: Tensor,
    grad_input: Tensor,
    grad_weight: Tensor,
    grad_bias: Tensor,
    grad_offset: Tensor,
    grad_mask: Tensor,
    grad_output: Tensor,
    kernel_h: int,
    kernel_w: int,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    group: int,
    deformable_group: int,
    with_bias: bool,
) -> None:
    """Add all gradients to the ``grad_...`` tensors; see :func:`modulated_deform_conv_forward`."""
    geometry = _Geometry(
        (kernel_h, kernel_w),
        (stride_h, stride_w),
        (pad_h, pad_w),
        (dilation_h, dilation_w),
        group,
        deformable_group,
    )
    tensors = (input, offset, mask, weight, bias if with_bias else None)
    grads = (grad_input, grad_offset, grad_mask, grad_weight, grad_bias if with_bias else None)
    _backward(grad_output, tensors, grads, geometry)


def _first_of(values: Tensor, output: Tensor) -> Tensor:
    """(B, C, Ho, Wo): the first numbers of each image of (B, C, H, W)."""
    if values.shape[2:] == output.shape[2:]:
        return values
    count = values.size(1) * output.shape[2:].numel()
    if count > values[0].numel():
        raise RuntimeError(f'there are offsets or masks for {tuple(values.shape)}, too few for {tuple(output.shape)}')
    return values.flatten(1)[:, :count].view(*values.shape[:2], *output.shape[2:])


def _forward(
    input: Tensor,
    offset: Tensor,
    mask: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    output: Tensor,
    geometry: _Geometry,
) -> None:
    for image, rows in _parts(output, input.size(1) * weight.shape[2:].numel()):
        output[image, :, rows] = _convolve(
            input[image],
            offset[image, :, rows],
            None if mask is None else mask[image, :, rows],
            weight,
            bias,
            rows.start,
            geometry,
        )


def _backward(
    grad_output: Tensor, tensors: tuple[Tensor | None, ...], grads: tuple[Tensor | None, ...], geometry: _Geometry
) -> None:
    """Add gradients of (input, offset, mask, weight, bias) to those of ``grads`` that are given.

    The forward pass of each part runs again, so that the columns of one part at a time are held.
    """
    input, _, _, weight, _ = tensors
    for image, rows in _parts(grad_output, input.size(1) * weight.shape[2:].numel()):
        # What each tensor contributes to this part: one image, for maps of the output's size some rows of it.
        views = ((image,), (image, slice(None), rows), (image, slice(None), rows), (), ())
        with torch.enable_grad():
            local = [
                None if tensor is None else tensor[view].detach().requires_grad_(grad is not None)
                for tensor, view, grad in zip(tensors, views, grads, strict=True)
            ]
            output = _convolve(*local, rows.start, geometry)
            wanted = [tensor for tensor in local if tensor is not None and tensor.requires_grad]
            found = iter(torch.autograd.grad(output, wanted, grad_output[image, :, rows]))
        for view, grad in zip(views, grads, strict=True):
            if grad is not None:
                grad[view] += next(found)


def _parts(output: Tensor, values: int) -> Iterator[tuple[int, slice]]:
    """Images, and rows of the output, that need few enough values at a time."""
    batch, _, height, width = output.shape
    step = max(MAX_ELEMENTS // (values * width), 1)
    for image in range(batch):
        for first in range(0, height, step):
            yield image, slice(first, min(first + step, height))


def _convolve(
    input: Tensor,
    offset: Tensor,
    mask: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    first_row: int,
    geometry: _Geometry,
) -> Tensor:
    """Rows of the output (O, rows, Wo) for one image (C, H, W), offsets (.., rows, Wo) and a mask of these rows."""
    channels, height, width = input.shape
    rows, columns = offset.shape[1:]
    samples = geometry.kernel[0] * geometry.kernel[1]
    deform_groups, groups = geometry.deform_groups, geometry.groups

    offset = offset.view(deform_groups, samples, 2, rows, columns)
    y, x = _kernel_positions(offset, first_row, geometry)
    index_y, weight_y = corners_zero_padded(y + offset[:, :, 0], height)
    index_x, weight_x = corners_zero_padded(x + offset[:, :, 1], width)
    plane = torch.arange(deform_groups, device=input.device).view(-1, 1, 1, 1, 1, 1) * (height * width)
    index = plane + index_y[..., :, None] * width + index_x[..., None, :]
    factor = weight_y[..., :, None] * weight_x[..., None, :]
    if mask is not None:
        factor = factor * mask.view(deform_groups, samples, rows, columns, 1, 1)

    table = as_table(input.view(deform_groups, -1, height, width))
    values = weighted_rows(table, index.reshape(-1, 4), factor.reshape(-1, 4))
    values = values.view(deform_groups, samples, rows * columns, -1).permute(0, 3, 1, 2)
    values = values.reshape(groups, channels // groups * samples, rows * columns)
    output = torch.bmm(weight.view(groups, -1, values.size(1)), values).view(-1, rows, columns)
    return output if bias is None else output + bias.view(-1, 1, 1)


def _kernel_positions(like: Tensor, first_row: int, geometry: _Geometry) -> tuple[Tensor, Tensor]:
    """Where the kernel samples without offsets, in pixels: y (samples, rows, 1) and x (samples, 1, columns)."""
    (kernel_y, kernel_x), stride, padding, dilation = geometry[:4]
    rows, columns = like.shape[-2:]
    axes = []
    for axis, (kernel, first, count) in enumerate(((kernel_y, first_row, rows), (kernel_x, 0, columns))):
        outer = torch.arange(first, first + count, device=like.device) * stride[axis] - padding[axis]
        inner = torch.arange(kernel, device=like.device) * dilation[axis]
        axes.append((inner[:, None] + outer).to(like.dtype))
    y = axes[0].repeat_interleave(kernel_x, dim=0)[:, :, None]
    x = axes[1].repeat(kernel_y, 1)[:, None, :]
    return y, x
