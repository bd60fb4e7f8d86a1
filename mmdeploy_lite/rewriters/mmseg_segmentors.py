"""Primitives of mmseg: slide inference and resize."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..export.operators import cut
from ..export.shapes import python_shape, static_size, tracing_paused
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) == 2
        and all(isinstance(item, int) and item > 0 for item in value)
    )


class WindowGrid(NamedTuple):
    """Where the windows of slide inference lie along one axis: they all have one size."""

    starts: list[int]
    window: int
    size: int

    @classmethod
    def of(cls, size: int, crop: int, stride: int) -> WindowGrid:
        """mmseg's grid: every ``stride`` pixels, the last window moved back into the image, none larger than the
        image.
        """
        count = max(size - crop + stride - 1, 0) // stride + 1
        window = min(crop, size)
        return cls([min(index * stride, size - window) for index in range(count)], window, size)

    def counts(self) -> np.ndarray:
        """(size,) how many windows cover each pixel."""
        counts = np.zeros(self.size, dtype=np.float32)
        for start in self.starts:
            counts[start : start + self.window] += 1
        return counts

    def strips(self) -> list[tuple[int, int, list[int]]]:
        """Start, end and the windows that cover it, of each part of the axis between two neighbouring borders."""
        borders = sorted({*self.starts, *(start + self.window for start in self.starts)})
        return [
            (begin, end, [i for i, start in enumerate(self.starts) if start <= begin and end <= start + self.window])
            for begin, end in zip(borders, borders[1:], strict=False)
        ]


@REWRITERS.register_module()
class SlideInference(FunctionRewriter):
    """All windows as one batch through the network once; their logits added tile by tile; a constant ``count_mat``.

    The original unrolls the network once per window and writes into slices.

    Raises:
        UnsupportedError: the image size is dynamic. The grid of windows is part of the graph. Or the windows do not
            cover the image.
    """

    target = 'mmseg.models.segmentors.encoder_decoder.EncoderDecoder.slide_inference'

    def check(self, model: Any) -> None:
        cfg = getattr(model, 'test_cfg', None) or {}
        if cfg.get('mode') != 'slide':
            return
        crop, stride = cfg.get('crop_size'), cfg.get('stride')
        if not all(map(_is_pair, (crop, stride))) or any(map(operator.gt, stride, crop)):
            raise UnsupportedError(
                f"the test config says mode='slide' with crop_size={crop} and stride={stride}; both must be (h, w) in"
                ' pixels, and no stride larger than the crop: what lies between the windows would have no answer'
            )

    def __call__(self, origin: Callable, model: Any, inputs: Tensor, batch_img_metas: list[dict]) -> Tensor:
        size = static_size(inputs)
        if size is None:
            raise UnsupportedError(
                'slide inference of images of any size cannot be one graph: its windows depend on the size;'
                ' give --shape H W'
            )
        windows, rows, columns = cut_windows(model, inputs, size)
        # heads upsample to img_shape; some ask for a torch.Size, which is how mmseg passes a window's
        metas = [{**meta, 'img_shape': torch.Size((rows.window, columns.window))} for meta in batch_img_metas]
        logits = model.encode_decode(windows, metas * (len(rows.starts) * len(columns.starts)))
        with tracing_paused():
            count_mat = torch.from_numpy(np.outer(rows.counts(), columns.counts())).to(logits)
        return _accumulate(logits, rows, columns) / count_mat


def cut_windows(model: Any, inputs: Tensor, size: tuple[int, int]) -> tuple[Tensor, WindowGrid, WindowGrid]:
    """The windows of slide inference as one batch, row by row, and their grids along height and width.

    Args:
        model: with ``test_cfg.crop_size`` and ``test_cfg.stride``.
        inputs: (N, C, H, W).
        size: (H, W) as Python ints.
    """
    rows, columns = (
        WindowGrid.of(extent, crop, stride)
        for extent, crop, stride in zip(size, model.test_cfg.crop_size, model.test_cfg.stride, strict=True)
    )
    windows = [inputs[:, :, y : y + rows.window, x : x + columns.window] for y in rows.starts for x in columns.starts]
    return torch.cat(windows), rows, columns


def _accumulate(logits: Tensor, rows: WindowGrid, columns: WindowGrid) -> Tensor:
    """Sum of the windows' logits (windows x N, C, h, w) at their places in (N, C, H, W).

    The windows' borders cut the image into tiles, each covered by the same few windows: these parts are cut out, added,
    and the tiles concatenated. Padding every window to the image and adding up says the same with several times the
    memory traffic. Where strides are below half a window the tiles are many and small; then the windows of each row are
    added first, and the rows afterwards.
    """
    batch = python_shape(logits)[0] // (len(rows.starts) * len(columns.starts))

    def part(row: int, column: int, top: int, bottom: int, left: int, right: int) -> Tensor:
        window = (row * len(columns.starts) + column) * batch
        y, x = rows.starts[row], columns.starts[column]
        return cut(logits, {0: (window, window + batch), 2: (top - y, bottom - y), 3: (left - x, right - x)})

    def strip(row_indices: list[int], top: int, bottom: int) -> Tensor:
        tiles = [
            _sum([part(row, column, top, bottom, left, right) for row in row_indices for column in covering])
            for left, right, covering in columns.strips()
        ]
        return torch.cat(tiles, dim=3)

    if max(len(covering) for grid in (rows, columns) for *_, covering in grid.strips()) <= 3:
        return torch.cat([strip(covering, top, bottom) for top, bottom, covering in rows.strips()], dim=2)
    whole = [strip([row], start, start + rows.window) for row, start in enumerate(rows.starts)]
    strips = [
        _sum([cut(whole[row], {2: (top - rows.starts[row], bottom - rows.starts[row])}) for row in covering])
        for top, bottom, covering in rows.strips()
    ]
    return torch.cat(strips, dim=2)


def _sum(parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


@REWRITERS.register_module()
class Resize(FunctionRewriter):
    """Resizes to ``size`` as it is traced; the original's warning about ``align_corners`` makes Python ints of traced
    sizes.
    """

    target = 'mmseg.models.utils.wrappers.resize'

    def __call__(
        self,
        origin: Callable,
        input: Tensor,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = 'nearest',
        align_corners: bool | None = None,
        warning: bool = True,
    ) -> Tensor:
        if size is not None and not isinstance(size, (int, Tensor)):
            size = tuple(size)
        return origin(input, size, scale_factor, mode, align_corners, warning=False)
