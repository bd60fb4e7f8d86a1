"""Primitives of the transformer backbones that mmdet, mmseg and mmcv share: patches and windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..export.shapes import at_least, axis_size, python_shape, static_size
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter


@REWRITERS.register_module()
class AdaptivePadding(FunctionRewriter):
    """Pads to what the kernel covers, by nothing where it fits; the original branches on whether it does."""

    target = (
        'mmseg.models.utils.embed.AdaptivePadding.forward',
        'mmdet.models.layers.transformer.utils.AdaptivePadding.forward',
        'mmcv.cnn.bricks.transformer.AdaptivePadding.forward',
    )

    def __call__(self, origin: Callable, module: Any, x: Tensor) -> Tensor:
        if module.padding not in ('same', 'corner'):  # mmdet makes a pair of it, and then pads nothing
            return x
        known, pads = static_size(x), []
        for axis in (-1, -2):  # as F.pad counts them
            kernel, stride, dilation = (getattr(module, name)[axis] for name in ('kernel_size', 'stride', 'dilation'))
            size = axis_size(x, axis) if known is None else known[axis]
            cells = (size + (stride - 1)) // stride
            pad = at_least((cells - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
            before = pad // 2 if module.padding == 'same' else 0
            pads += [before, pad - before]
        return x if known and not any(pads) else F.pad(x, pads)


@REWRITERS.register_module()
class ShiftWindowMSA(FunctionRewriter):
    """Attention in shifted windows (Swin, https://arxiv.org/abs/2103.14030) of an image of any size.

    The original makes Python numbers of sizes to put the windows together again, assigns to slices that are empty
    where there is one window, and branches on whether it has padded.
    """

    target = (
        'mmseg.models.backbones.swin.ShiftWindowMSA.forward',
        'mmdet.models.backbones.swin.ShiftWindowMSA.forward',
    )

    def __call__(self, origin: Callable, msa: Any, query: Tensor, hw_shape: tuple[Any, Any]) -> Tensor:
        (height, width), window, shift = hw_shape, msa.window_size, msa.shift_size
        batch, _, channels = python_shape(query)
        padded_height, padded_width = (extent + -extent % window for extent in hw_shape)
        query = query.view(batch, height, width, channels)
        query = F.pad(query, (0, 0, 0, padded_width - width, 0, padded_height - height))
        mask = None
        if shift:
            query = torch.roll(query, (-shift, -shift), (1, 2))
            rows, columns = (_regions(extent, window, shift, query) for extent in (padded_height, padded_width))
            regions = msa.window_partition((3 * rows[:, None] + columns)[None, :, :, None]).flatten(1)
            apart = regions[:, None] != regions[:, :, None]
            mask = torch.where(apart, query.new_full((), -100.0), query.new_zeros(()))
        windows = msa.w_msa(msa.window_partition(query).view(-1, window**2, channels), mask=mask)
        grid = padded_height // window, padded_width // window
        x = windows.view(batch, *grid, window, window, channels).permute(0, 1, 3, 2, 4, 5)
        x = x.reshape(batch, padded_height, padded_width, channels)
        if shift:
            x = torch.roll(x, (shift, shift), (1, 2))
        return msa.drop(x[:, :height, :width].reshape(batch, height * width, channels))


def _regions(size: Any, window: int, shift: int, like: Tensor) -> Tensor:
    """(size,) 0, 1 or 2: what was apart before the shift, and shares windows after it."""
    position = torch.arange(size, device=like.device)
    return (position >= size - window).to(like) + (position >= size - shift).to(like)
