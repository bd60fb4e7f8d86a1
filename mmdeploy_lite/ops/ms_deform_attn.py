"""Multi-scale deformable attention.

Zhu et al., Deformable DETR, https://arxiv.org/abs/2010.04159. On a CPU mmcv runs a PyTorch version of its own and does
not call these; with mmcv-lite on a GPU it does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .bilinear import corners_zero_padded, weighted_rows

__all__ = ['ms_deform_attn_backward', 'ms_deform_attn_forward']


def ms_deform_attn_forward(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_loc: Tensor,
    attn_weight: Tensor,
    im2col_step: int,
) -> Tensor:
    """Sum bilinear samples of several feature maps, weighted by attention.

    Args:
        value (Tensor): (B, K, heads, D), the pixels of all maps one after the other, each in row-major order.
        spatial_shapes (Tensor): (levels, 2) int64, height and width of each map.
        level_start_index (Tensor): (levels,) int64, where each map starts in K.
        sampling_loc (Tensor): (B, Q, heads, levels, points, 2), x and y as fractions of the map's width and height;
            pixel i covers [i, i + 1] and the map is zero outside.
        attn_weight (Tensor): (B, Q, heads, levels, points).
        im2col_step (int): Images at a time in the compiled operator; not used.

    Returns:
        Tensor: (B, Q, heads * D).
    """
    batch, keys, heads, dims = value.shape
    queries = sampling_loc.size(1)
    table = value.reshape(-1, dims)
    image = torch.arange(batch, device=value.device).view(-1, 1, 1, 1, 1, 1)
    head = torch.arange(heads, device=value.device).view(-1, 1, 1, 1)
    output = value.new_zeros(batch * queries * heads, dims)
    for level, (height, width) in enumerate(spatial_shapes.tolist()):
        x, y = sampling_loc[:, :, :, level].unbind(-1)
        index_y, weight_y = corners_zero_padded(y * height - 0.5, height)
        index_x, weight_x = corners_zero_padded(x * width - 0.5, width)
        key = level_start_index[level] + index_y[..., :, None] * width + index_x[..., None, :]
        rows = (image * keys + key) * heads + head
        weights = weight_y[..., :, None] * weight_x[..., None, :] * attn_weight[:, :, :, level, :, None, None]
        output = output + weighted_rows(table, rows.flatten(3).flatten(0, 2), weights.flatten(3).flatten(0, 2))
    return output.view(batch, queries, heads * dims)


def ms_deform_attn_backward(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_loc: Tensor,
    attn_weight: Tensor,
    grad_output: Tensor,
    grad_value: Tensor,
    grad_sampling_loc: Tensor,
    grad_attn_weight: Tensor,
    im2col_step: int,
) -> None:
    """Add gradients to ``grad_value``, ``grad_sampling_loc`` and ``grad_attn_weight``.

    Args:
        grad_output (Tensor): (B, Q, heads * D); for the others see :func:`ms_deform_attn_forward`.
    """
    with torch.enable_grad():
        wanted = [tensor.detach().requires_grad_() for tensor in (value, sampling_loc, attn_weight)]
        output = ms_deform_attn_forward(wanted[0], spatial_shapes, level_start_index, *wanted[1:], im2col_step)
        found = torch.autograd.grad(output, wanted, grad_output.view_as(output))
    for grad, part in zip((grad_value, grad_sampling_loc, grad_attn_weight), found, strict=True):
        grad += part
