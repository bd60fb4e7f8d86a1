"""Slide inference of logits that are smaller than their window: upsampled and added up in one.

Bilinear upsampling, adding the windows up at their places and dividing by ``count_mat`` are linear, and separable in
rows and columns. So instead of upsampling every window, to be read again when they are added, the logits of all
windows side by side are multiplied by matrices for the columns and for the rows: of SegFormer-b0, 150 classes, the
windows of 512 x 1024 pixels are 45 MB as they come from the head and 710 MB upsampled.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..export.operators import cut
from ..export.shapes import python_shape, tracing_paused
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter
from .windows_grid import WindowGrid

BLOCK = 2**19
"""About how many elements all channels of a block have. SegFormer-b0 in windows takes as long with 2**18 to 2**20, and
a seventh longer with 2**22.
"""


@dataclass
class Deferred:
    """What the head would have upsampled.

    Attributes:
        logits: (N, C, h, w), not upsampled; None where the head has a way of its own.
        rows: (H, h) what upsampling multiplies by from the left.
        columns: (w, W) and from the right.
    """

    logits: Tensor | None = None
    rows: Tensor | None = None
    columns: Tensor | None = None


_deferred: list[Deferred] = []


@contextlib.contextmanager
def upsampling_deferred() -> Iterator[Deferred]:
    """Heads that run inside leave upsampling to whoever asked, and say how they would have done it."""
    _deferred.append(Deferred())
    try:
        yield _deferred[-1]
    finally:
        _deferred.pop()


@REWRITERS.register_module()
class PredictByFeat(FunctionRewriter):
    """Leaves upsampling to slide inference, where that asks for it and the logits are much smaller than a window."""

    target = 'mmseg.models.decode_heads.decode_head.BaseDecodeHead.predict_by_feat'

    def __call__(self, origin: Callable, head: Any, seg_logits: Tensor, batch_img_metas: list[dict]) -> Tensor:
        if _deferred:
            matrices = separated(lambda logits: origin(head, logits, batch_img_metas), seg_logits)
            if matrices is not None:
                _deferred[-1].logits, (_deferred[-1].rows, _deferred[-1].columns) = seg_logits, matrices
                return seg_logits
        return origin(head, seg_logits, batch_img_metas)


def separated(upsample: Callable[[Tensor], Tensor], logits: Tensor) -> tuple[Tensor, Tensor] | None:
    """Upsampling as two matrices, found by upsampling single pixels.

    Args:
        upsample: from (N, C, h, w) to (N, C, H, W).
        logits: (N, C, h, w) of which it is asked.

    Returns:
        (H, h) and (w, W) whose product with the logits between them is the same; None where they are not, or where the
        logits are not at most half as large and matrices would cost more than they save.
    """
    with tracing_paused():
        height, width = (int(extent) for extent in logits.shape[2:])
        single = [torch.eye(extent, dtype=logits.dtype, device=logits.device) for extent in (height, width)]
        of_rows = upsample(single[0][None, :, :, None].expand(1, height, height, width))
        if of_rows.shape[2] < 2 * height or of_rows.shape[3] < 2 * width:
            return None
        rows = of_rows[0, :, :, 0].t().contiguous()
        columns = upsample(single[1][None, :, None].expand(1, width, height, width))[0, :, 0].contiguous()
        probe = torch.linspace(-1, 1, height * width, dtype=logits.dtype, device=logits.device).sin()
        probe = probe.reshape(1, 1, height, width)
        if not torch.allclose(rows @ probe @ columns, upsample(probe), atol=1e-5):
            return None
    return rows, columns


def mean_of_upsampled(deferred: Deferred, rows: WindowGrid, columns: WindowGrid) -> Tensor:
    """Mean of the upsampled windows at their places: (N, C, H, W).

    The answer is made in blocks, which the next operator, ArgMax over the classes, reads while they are in the cache.
    Their pixels are no multiple of 64: where those of two classes lie a multiple of 4096 bytes apart, as in 512 x 1024
    pixels, the cache has but a few places for all classes. With 150 of them ArgMax took 194 ms of such pixels, and of
    the blocks it takes 35.

    Args:
        deferred: the logits of all windows, row by row, (windows x N, C, h, w), and how to upsample them.
        rows: where the windows lie along the height.
        columns: and along the width.
    """
    logits = deferred.logits
    windows, classes, height, width = python_shape(logits)
    grid = len(rows.starts), len(columns.starts)
    logits = logits.reshape(*grid, windows // (grid[0] * grid[1]), classes, height, width)
    logits = logits.permute(2, 3, 0, 4, 1, 5).reshape(-1, classes, grid[0] * height, grid[1] * width)
    with tracing_paused():
        lines = deferred.rows.new_zeros(rows.size, grid[0] * height)  # of logits there may be no values
        for top, bottom, covering in rows.strips():
            for i in covering:
                seen = deferred.rows[top - rows.starts[i] : bottom - rows.starts[i]]
                lines[top:bottom, i * height : (i + 1) * height] = seen / len(covering)
    # between two neighbouring borders the same few windows cover every pixel
    strips = []
    most = 2 * math.isqrt(4 * BLOCK // classes)  # else the blocks of many classes are a row high
    for left, right, covering in columns.strips():
        for start, stop in _uneven(left, right, most):
            with tracing_paused():
                matrix = deferred.columns.new_zeros(grid[1] * width, stop - start)
                for i in covering:
                    seen = deferred.columns[:, start - columns.starts[i] : stop - columns.starts[i]]
                    matrix[i * width : (i + 1) * width] = seen / len(covering)
                parts = lines.split(BLOCK // (classes * (stop - start)) | 1)
            values, matrix = _needed(logits, 3, matrix, 0)
            blocks = []
            for part in parts:
                seen, part = _needed(values, 2, part, 1)
                blocks.append(part @ (seen @ matrix))
            strips.append(torch.cat(blocks, dim=2))
    return torch.cat(strips, dim=3)


def _uneven(start: int, stop: int, most: int) -> list[tuple[int, int]]:
    """Columns in parts of about one width, at most so many and one; all but the last are odd, a single one is no
    multiple of 64.
    """
    width = stop - start
    count = -(-width // most)
    if count == 1 and width % 64 == 0:
        count = 2
    cuts = [start]
    for part in range(1, count):
        cut_at = start + width * part // count
        cuts.append(cut_at + (cut_at - cuts[-1] + 1) % 2)
    return list(zip(cuts, [*cuts[1:], stop], strict=True))


def _needed(values: Tensor, axis: int, matrix: Tensor, across: int) -> tuple[Tensor, Tensor]:
    """Both factors of a product without what the matrix has nothing but zeros for.

    Args:
        values: one factor.
        axis: of the values, that is summed over.
        matrix: the other factor, a constant.
        across: the axis of the matrix that is summed over.
    """
    with tracing_paused():
        needed = matrix.abs().sum(dim=1 - across).nonzero()[:, 0]
        matrix = matrix.index_select(across, needed)
        first, last, count = int(needed[0]), int(needed[-1]) + 1, int(needed.numel())
    if last - first == count:
        return cut(values, {axis: (first, last)}), matrix
    return values.index_select(axis, needed), matrix
