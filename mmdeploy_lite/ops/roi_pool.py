"""RoIPool: bins of whole pixels of a region, each its maximum.

Girshick, Fast R-CNN, https://arxiv.org/abs/1504.08083, with the conventions of mmcv's kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ['roi_pool_backward', 'roi_pool_forward']


def roi_pool_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> None:
    """Pool regions of feature maps, into ``output``.

    Args:
        input (Tensor): (B, C, H, W).
        rois (Tensor): (R, 5), batch index and x1 y1 x2 y2 in pixels of the image, the last ones included.
        output (Tensor): (R, C, pooled_height, pooled_width), written; an empty bin is zero.
        argmax (Tensor): The same shape, int32, written: the pixel (``y * W + x``) of each maximum, -1 for an empty bin.
        pooled_height (int): Bins along y.
        pooled_width (int): Bins along x.
        spatial_scale (float): Pixels of the feature map per pixel of the image.
    """
    output.zero_()
    argmax.fill_(-1)
    height, width = input.shape[2:]
    start = rois[:, 1:3] * spatial_scale
    size = (rois[:, 3:5] + 1) * spatial_scale - start
    x1, x2 = _bin_edges(start[:, 0], size[:, 0], pooled_width, width)
    y1, y2 = _bin_edges(start[:, 1], size[:, 1], pooled_height, height)
    valid = (size > 0).all(dim=1)
    for r in valid.nonzero().flatten().tolist():
        features = input[int(rois[r, 0])]
        for j, (left, right) in enumerate(zip(x1[r].tolist(), x2[r].tolist(), strict=True)):
            if left >= right:
                continue
            rows, columns = features[:, :, left:right].max(dim=2)  # of each row the maximum; a bin is some rows of it
            for i, (top, bottom) in enumerate(zip(y1[r].tolist(), y2[r].tolist(), strict=True)):
                if top >= bottom:
                    continue
                output[r, :, i, j], row = rows[:, top:bottom].max(dim=1)
                row = row + top
                column = columns.gather(1, row[:, None])[:, 0] + left
                argmax[r, :, i, j] = (row * width + column).to(argmax.dtype)


def roi_pool_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax: Tensor,
    grad_input: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> None:
    """Add the gradient of the feature maps to ``grad_input``; see :func:`roi_pool_forward`.

    Args:
        grad_output (Tensor): (R, C, pooled_height, pooled_width).
        grad_input (Tensor): (B, C, H, W), added to.
    """
    channels, pixels = grad_input.size(1), grad_input.shape[2:].numel()
    plane = rois[:, :1].long() * channels + torch.arange(channels, device=rois.device)
    index = plane[:, :, None, None] * pixels + argmax
    found = argmax >= 0
    grad = torch.zeros_like(grad_input).flatten()
    grad.index_add_(0, index[found], grad_output[found])
    grad_input += grad.view_as(grad_input)


def _bin_edges(start: Tensor, size: Tensor, bins: int, limit: int) -> tuple[Tensor, Tensor]:
    """First pixel and the one after the last of each bin: two (R, bins) int64, within [0, limit]."""
    index = torch.arange(bins, device=start.device, dtype=start.dtype)
    bin_size = size[:, None] / bins
    first = (index * bin_size + start[:, None]).floor()
    last = ((index + 1) * bin_size + start[:, None]).ceil()
    return first.clamp(0, limit).long(), last.clamp(0, limit).long()
