"""Slide inference of mmseg: one image in overlapping windows."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UnsupportedError
from ..export import loops
from ..export.operators import cut
from ..export.shapes import python_shape, sizes_fixed, static_size, tracing_paused
from ..export.tracing import is_symbolic, is_tracing
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter
from .mmseg_upsample import mean_of_upsampled, upsampling_deferred
from .windows_grid import WindowGrid


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) == 2
        and all(isinstance(item, int) and item > 0 for item in value)
    )


@REWRITERS.register_module()
class SlideInference(FunctionRewriter):
    """All windows through the network once; the original unrolls it once per window and writes into slices.

    Of an image of fixed size the windows are one batch, their logits are added tile by tile, or by matrices where they
    are much smaller than the windows, and ``count_mat`` is a constant. Of one of any size, not smaller than a window,
    they run in a loop and are added pixel by pixel.

    Raises:
        UnsupportedError: the windows do not cover the image.
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
        if size is None and is_symbolic():
            raise UnsupportedError(
                'slide inference of an image of any size is a loop, which torch.export cannot be given; give --shape H'
                ' W, or export with TorchScriptExporter'
            )
        if size is None and is_tracing():
            return _of_any_size(model, inputs, batch_img_metas)
        windows, rows, columns = cut_windows(model, inputs, size or python_shape(inputs)[-2:])
        # heads upsample to img_shape; some ask for a torch.Size, which is how mmseg passes a window's
        metas = [{**meta, 'img_shape': torch.Size((rows.window, columns.window))} for meta in batch_img_metas]
        metas *= len(rows.starts) * len(columns.starts)
        with upsampling_deferred() as deferred:
            logits = model.encode_decode(windows, metas)
        if deferred.logits is logits:
            return mean_of_upsampled(deferred, rows, columns)
        if deferred.logits is not None:  # the model goes on with what the head should have upsampled
            logits = model.encode_decode(windows, metas)
        with tracing_paused():
            count_mat = torch.from_numpy(np.outer(rows.counts(), columns.counts())).to(logits.device, logits.dtype)
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


class TracedGrid:
    """The windows along one axis of an image of any size that is not smaller than a window.

    Args:
        size: of the axis, a traced number.
        window: in pixels.
        stride: in pixels.

    Attributes:
        pixels: (windows, window) int64, the image's pixels that each window sees.
    """

    def __init__(self, size: Tensor, window: int, stride: int) -> None:
        self.window, self.stride, self.size = window, stride, size
        # a smaller image asks for pixels that are not there, which is an error when the file runs, and no wrong answer
        room = (size - window).clamp(min=0)
        self.count = torch.div(room + (stride - 1), stride, rounding_mode='floor') + 1
        index = torch.arange(self.count, device=size.device)
        starts = torch.minimum(index * stride, room)
        self.pixels = starts[:, None] + torch.arange(window, device=size.device)

    def covering(self) -> list[tuple[Tensor, Tensor]]:
        """The windows that see each pixel: as many pairs as there are at most.

        Returns:
            (size,) int64, place of the pixel in the row of all windows put side by side, or behind it where there is no
            such window; and (size,) bool, whether there is.
        """
        pixel = torch.arange(self.size, device=self.size.device)
        last = self.count - 1
        newest = torch.div(pixel, self.stride, rounding_mode='floor')  # the last of those a stride apart that has begun
        found = []
        for back in range(-(-self.window // self.stride)):
            window = newest - back
            offset = pixel - window * self.stride
            found.append((window, offset, (window >= 0) & (window < last) & (offset < self.window)))
        offset = pixel - (self.size - self.window)  # the last window ends with the image
        found.append((last.expand_as(pixel), offset, offset >= 0))
        return [
            (torch.where(there, window * self.window + offset, self.count * self.window), there)
            for window, offset, there in found
        ]


def _of_any_size(model: Any, inputs: Tensor, batch_img_metas: list[dict]) -> Tensor:
    height, width = model.test_cfg.crop_size
    if any(extent < window for extent, window in zip(python_shape(inputs)[-2:], (height, width), strict=True)):
        raise UnsupportedError(
            'an image smaller than a window of slide inference runs in windows of its own size, and a file of any size'
            ' has those of the config; trace it on a larger image, or give --shape H W'
        )
    sizes = torch._shape_as_tensor(inputs)
    rows, columns = (
        TracedGrid(sizes[axis], window, stride)
        for axis, window, stride in zip((2, 3), (height, width), model.test_cfg.stride, strict=True)
    )
    batch, channels = python_shape(inputs)[:2]
    windows = inputs[:, :, rows.pixels][..., columns.pixels]  # (N, C, rows, h, columns, w)
    windows = windows.permute(2, 4, 0, 1, 3, 5).reshape(-1, batch, channels, height, width)
    metas = [{**meta, 'img_shape': torch.Size((height, width))} for meta in batch_img_metas]
    with sizes_fixed():
        logits = model.encode_decode(loops.begin(windows), metas)
    logits = loops.end(logits, windows)
    classes = python_shape(logits)[2]
    # the windows of a column under each other, (N, C, columns, rows * h, w), then the columns side by side
    logits = logits.reshape(rows.count, columns.count, batch, classes, height, width).permute(2, 3, 1, 0, 4, 5)
    in_rows, in_columns = rows.covering(), columns.covering()
    tall = _summed(logits.flatten(3, 4), 3, in_rows)
    total = _summed(tall.permute(0, 1, 3, 2, 4).flatten(3, 4), 3, in_columns)
    per_row, per_column = (_sum([there.to(total) for _, there in covering]) for covering in (in_rows, in_columns))
    return total / (per_row[:, None] * per_column)


def _summed(values: Tensor, axis: int, covering: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The sum over the windows that see each pixel, along one axis: where there is none, a zero behind all is read."""
    pads = [0] * (2 * (values.dim() - axis))
    pads[-1] = 1
    values = F.pad(values, pads)
    return _sum([values.index_select(axis, place) for place, _ in covering])
