"""RoIAlign: bins of a region, each the average or the maximum of bilinear samples.

He et al., Mask R-CNN, https://arxiv.org/abs/1703.06870, with the conventions of mmcv's CPU kernel.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .bilinear import as_table, corners_clamped, from_table, weighted_rows

__all__ = ['roi_align_backward', 'roi_align_forward']

#: Values held at a time: four corners per sample, in 'max' mode the sampled channels.
MAX_ELEMENTS = 2**21
#: What a bin without samples answers in 'max' mode, and the least it ever answers.
LEAST_MAXIMUM = -10000.0


def roi_align_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Pool regions of feature maps, into ``output``.

    Args:
        input (Tensor): Feature maps (B, C, H, W).
        rois (Tensor): (R, 5), batch index and x1 y1 x2 y2 in pixels of the image.
        output (Tensor): (R, C, aligned_height, aligned_width), written.
        argmax_y (Tensor): With ``pool_mode`` 0 the y position of each maximum, shape of ``output``, written.
        argmax_x (Tensor): The same for x.
        aligned_height (int): Bins along y.
        aligned_width (int): Bins along x.
        spatial_scale (float): Pixels of the feature map per pixel of the image.
        sampling_ratio (int): Samples per bin along each axis; 0 for one per pixel of the feature map, rounded up.
        pool_mode (int): 0 for the maximum, 1 for the average.
        aligned (bool): Whether pixel i covers [i, i + 1] of the image. If not, the positions are half a pixel off and a
            region is at least one pixel of the feature map wide and high (the first RoIAlign).

    Raises:
        RuntimeError: If ``aligned`` and a region has a negative (or NaN) size, as the compiled operator does.
    """
    if not len(rois):
        return
    height, width = input.shape[2:]
    table = as_table(input)
    held = 4 if pool_mode == 1 else max(input.size(1), 4)
    positions = _sample_positions(
        rois, aligned_height, aligned_width, spatial_scale, sampling_ratio, aligned, input, held
    )
    for part, y, x in positions:
        rows, weights = _corners(rois[part, 0], y, x, height, width)
        if pool_mode == 1:
            samples = max(rows.size(3) * rows.size(4), 1)
            values = weighted_rows(table, rows.flatten(3).flatten(0, 2), weights.flatten(3).flatten(0, 2)) / samples
        else:
            values, best_y, best_x = _maxima(table, rows, weights, y, x)
            argmax_y[part] = _as_bins(best_y, argmax_y)
            argmax_x[part] = _as_bins(best_x, argmax_x)
        output[part] = _as_bins(values, output)


def roi_align_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Add the gradient of the feature maps to ``grad_input``; arguments as in :func:`roi_align_forward`.

    Args:
        grad_output (Tensor): (R, C, aligned_height, aligned_width).
        grad_input (Tensor): (B, C, H, W), added to.
    """
    if not len(rois):
        return
    height, width = grad_input.shape[2:]
    if pool_mode == 1:
        grad_table = torch.zeros_like(as_table(grad_input))
        held = max(grad_input.size(1), 4)
        positions = _sample_positions(
            rois, aligned_height, aligned_width, spatial_scale, sampling_ratio, aligned, grad_input, held
        )
        for part, y, x in positions:
            rows, weights = _corners(rois[part, 0], y, x, height, width)
            samples = max(rows.size(3) * rows.size(4), 1)
            grad = grad_output[part].permute(0, 2, 3, 1).flatten(0, 2) / samples
            for row, weight in zip(rows.flatten(3).unbind(-1), weights.flatten(3).unbind(-1), strict=True):
                grad_table.index_add_(0, row.flatten(), grad * weight.reshape(-1, 1))
        grad_input += from_table(grad_table, grad_input.shape)
        return
    # Each channel has its own maximum; a bin without one, marked by position -1, gave a constant.
    found = argmax_y != -1
    batch = rois[:, 0].long().view(-1, 1, 1, 1)
    channel = torch.arange(grad_input.size(1), device=rois.device).view(1, -1, 1, 1)
    index_y, weight_y = corners_clamped(argmax_y, height)
    index_x, weight_x = corners_clamped(argmax_x, width)
    plane = (batch * grad_input.size(1) + channel) * (height * width)
    rows = plane[..., None, None] + index_y[..., :, None] * width + index_x[..., None, :]
    weights = weight_y[..., :, None] * weight_x[..., None, :]
    grad = torch.zeros_like(grad_input).flatten()
    grad.index_add_(0, rows.flatten(), ((grad_output * found)[..., None, None] * weights).flatten())
    grad_input += grad.view_as(grad_input)


def _sample_positions(
    rois: Tensor,
    bins_y: int,
    bins_x: int,
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
    features: Tensor,
    values_per_sample: int,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Where each bin of each region is sampled, for regions with the same number of samples and not too many at a time.

    Yields:
        tuple: Indices of the regions (P,) int64, y positions (P, bins_y, samples_y) and x positions
        (P, bins_x, samples_x) in pixels of the feature map; pixel i lies at i.
    """
    batch = rois[:, 0].long()
    if batch.min() < 0 or batch.max() >= len(features):
        raise RuntimeError(f'RoIs name images {batch.min()} to {batch.max()} of a batch of {len(features)}')
    scaled = rois[:, 1:].to(features.dtype) * spatial_scale - (0.5 if aligned else 0.0)
    start, size = scaled[:, :2], scaled[:, 2:] - scaled[:, :2]
    if not aligned:
        size = size.clamp(min=1)
    if not bool((size >= 0).all()):
        worst = rois[~(size >= 0).all(dim=1)][0].tolist()
        raise RuntimeError(
            f'RoIAlign cannot pool a region of negative or undefined size: {worst} (batch, x1, y1, x2, y2)'
        )
    bin_size = size / size.new_tensor([bins_x, bins_y])
    if sampling_ratio > 0:
        samples = torch.full_like(bin_size, sampling_ratio, dtype=torch.long)
    else:
        samples = bin_size.float().ceil().long()  # in single precision also for doubles, like the compiled operator

    for count in samples.unique(dim=0):
        same = (samples == count).all(dim=1).nonzero().squeeze(1)
        per_roi = bins_x * bins_y * max(int(count.prod()), 1) * values_per_sample
        for part in same.split(max(MAX_ELEMENTS // per_roi, 1)):
            x, y = (
                _axis_positions(start[part, axis], bin_size[part, axis], bins, int(count[axis]))
                for axis, bins in ((0, bins_x), (1, bins_y))
            )
            yield part, y, x


def _axis_positions(start: Tensor, bin_size: Tensor, bins: int, samples: int) -> Tensor:
    """Positions (P, bins, samples) of the samples along one axis, evenly spread in each bin."""
    bin_index = torch.arange(bins, device=start.device, dtype=start.dtype).view(1, -1, 1)
    sample_index = torch.arange(samples, device=start.device, dtype=start.dtype) + 0.5
    start, bin_size = start.view(-1, 1, 1), bin_size.view(-1, 1, 1)
    return start + bin_index * bin_size + sample_index * bin_size / max(samples, 1)


def _corners(batch: Tensor, y: Tensor, x: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Rows of the table and weights for all samples: both (P, bins_y, bins_x, samples_y, samples_x, 4)."""
    index_y, weight_y = corners_clamped(y, height)
    index_x, weight_x = corners_clamped(x, width)
    index_y = index_y[:, :, None, :, None, :, None] + batch.long().view(-1, 1, 1, 1, 1, 1, 1) * height
    rows = index_y * width + index_x[:, None, :, None, :, None, :]
    weights = weight_y[:, :, None, :, None, :, None] * weight_x[:, None, :, None, :, None, :]
    return rows.flatten(5), weights.flatten(5)


def _maxima(table: Tensor, rows: Tensor, weights: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest sample per bin and channel and its position: three (P * bins_y * bins_x, C)."""
    samples, channels = rows.size(3) * rows.size(4), table.size(1)
    if samples == 0:
        bins = rows.shape[:3].numel()
        return table.new_full((bins, channels), LEAST_MAXIMUM), *table.new_full((2, bins, channels), -1.0)
    values = weighted_rows(table, rows.flatten(0, 4), weights.flatten(0, 4))
    values, best = values.view(-1, samples, channels).max(dim=1)
    found = values > LEAST_MAXIMUM
    positions = (
        torch.where(found, pos.expand(rows.shape[:5]).reshape(-1, samples).gather(1, best), -1.0)
        for pos in (y[:, :, None, :, None], x[:, None, :, None, :])
    )
    return torch.where(found, values, LEAST_MAXIMUM), *positions


def _as_bins(values: Tensor, like: Tensor) -> Tensor:
    """Turn (P * bins_y * bins_x, C) into (P, C, bins_y, bins_x)."""
    return values.view(-1, *like.shape[2:], like.size(1)).permute(0, 3, 1, 2)
