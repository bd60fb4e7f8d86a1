"""Primitives of mmseg's backbones and necks: sizes that decide about padding and resizing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..export.shapes import axis_size, size_tensor, static_size
from ..export.tracing import is_symbolic
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter


@REWRITERS.register_module()
class PositionEmbedding(FunctionRewriter):
    """Resizes the position embeddings and takes those, or the original ones where their number is the image's.

    The original compares the numbers in Python. It does not look at height and width: of an image turned by 90 degrees
    it takes the embeddings as they are, and so does this.
    """

    target = 'mmseg.models.backbones.vit.VisionTransformer._pos_embeding'

    def __call__(
        self, origin: Callable, backbone: Any, patched_img: Tensor, hw_shape: tuple[Any, Any], pos_embed: Tensor
    ) -> Tensor:
        if static_size(patched_img) is not None:
            return origin(backbone, patched_img, hw_shape, pos_embed)
        grid = tuple(extent // backbone.patch_size for extent in backbone.img_size)
        resized = backbone.resize_pos_embed(pos_embed, hw_shape, grid, backbone.interpolate_mode)
        patches, known = axis_size(patched_img, 1), pos_embed.shape[1]
        index = torch.arange(patches, device=pos_embed.device)
        as_they_are = pos_embed[:, index.clamp(max=known - 1)]  # of the image's length, whatever that is
        fits = size_tensor(patched_img, 1) == known
        return backbone.drop_after_pos(patched_img + torch.where(fits, as_they_are, resized))


@REWRITERS.register_module()
class Upsample(FunctionRewriter):
    """The size times the factor, rounded down, in the graph; the original makes Python numbers of it."""

    target = 'mmseg.models.utils.wrappers.Upsample.forward'

    def __call__(self, origin: Callable, module: Any, x: Tensor) -> Tensor:
        from mmseg.models.utils import resize

        factor = module.scale_factor
        if module.size or static_size(x) is not None or factor is None or isinstance(factor, tuple):
            return origin(module, x)
        if is_symbolic():
            size = [math.floor(extent * factor) for extent in x.shape[-2:]]
        else:
            size = (torch._shape_as_tensor(x)[-2:].double() * factor).floor().long()  # as Python multiplies
        return resize(x, (size[0], size[1]), None, module.mode, module.align_corners)
