"""PSA masks: each position's attention over its surroundings, laid out over the whole feature map.

Zhao et al., PSANet: Point-wise Spatial Attention Network for Scene Parsing, ECCV 2018, with the conventions of mmcv's
kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ['psamask_backward', 'psamask_forward']


def psamask_forward(
    input: Tensor,
    output: Tensor,
    psa_type: int,
    num_: int,
    h_feature: int,
    w_feature: int,
    h_mask: int,
    w_mask: int,
    half_h_mask: int,
    half_w_mask: int,
) -> None:
    """Lay masks out, into ``output``.

    Args:
        input (Tensor): (N, h_mask * w_mask, H, W): at each position, a mask of its surroundings, itself in the middle.
        output (Tensor): (N, H * W, H, W), written; zero where a mask does not reach.
        psa_type (int): 0 collects: the first axis are the positions that are looked at. 1 distributes: the last two.
        num_ (int): N.
        h_feature (int): H.
        w_feature (int): W.
        h_mask (int): Rows of a mask.
        w_mask (int): Columns of a mask.
        half_h_mask (int): Row of the middle.
        half_w_mask (int): Column of the middle.
    """
    output.copy_(psa_mask(input, bool(psa_type), (h_mask, w_mask)))


def psamask_backward(
    grad_output: Tensor,
    grad_input: Tensor,
    psa_type: int,
    num_: int,
    h_feature: int,
    w_feature: int,
    h_mask: int,
    w_mask: int,
    half_h_mask: int,
    half_w_mask: int,
) -> None:
    """Gradient of :func:`psamask_forward`, into ``grad_input``; its other arguments are the same."""
    index, inside = _places(h_feature, w_feature, (h_mask, w_mask), grad_output.device)
    gradient = grad_output.reshape(num_, h_feature * w_feature, h_feature * w_feature)
    if psa_type:
        gradient = gradient.transpose(1, 2)
    gradient = torch.where(inside, gradient.reshape(num_, -1), gradient.new_zeros(()))
    grad_input.copy_(torch.zeros_like(grad_input).flatten(1).index_add_(1, index, gradient).view_as(grad_input))


def psa_mask(masks: Tensor, distribute: bool, mask_size: tuple[int, int]) -> Tensor:
    """Lay masks out, as one lookup.

    Args:
        masks: (N, h * w, H, W), at each position a mask of its surroundings.
        distribute: else they are collected.
        mask_size: (h, w) of a mask.

    Returns:
        (N, H * W, H, W). Collected: what the position of the last two axes asks of the one of the first. Distributed:
        what the position of the first axis gives to the one of the last two.
    """
    number, _, height, width = masks.shape
    index, inside = _places(height, width, mask_size, masks.device)
    values = torch.index_select(masks.flatten(1), 1, index)
    values = torch.where(inside, values, masks.new_zeros(())).reshape(number, height * width, height * width)
    if distribute:
        values = values.transpose(1, 2)
    return values.reshape(number, height * width, height, width)


def _places(height: int, width: int, mask_size: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Where in a flattened (h * w, H, W) is what a position asks of another, for all pairs (the other, position), and
    whether its mask reaches that far.
    """
    row, row_inside = _offsets(height, mask_size[0], device)
    column, column_inside = _offsets(width, mask_size[1], device)
    channel = row[:, None, :, None] * mask_size[1] + column[None, :, None, :]
    position = torch.arange(height * width, device=device).reshape(height, width)
    index = channel * (height * width) + position
    inside = row_inside[:, None, :, None] & column_inside[None, :, None, :]
    return index.reshape(-1), inside.reshape(-1)


def _offsets(size: int, extent: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(size, size): the mask's row at a position that shows the other, and whether the mask has that row."""
    steps = torch.arange(size, device=device)
    offset = steps[:, None] - steps[None, :] + (extent - 1) // 2
    return offset.clamp(0, extent - 1), (offset >= 0) & (offset < extent)
