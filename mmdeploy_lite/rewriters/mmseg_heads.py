"""Primitives of mmseg's decode heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..export.shapes import at_most, python_int, python_shape, size_tensor, static_size, tracing_paused
from ..export.tracing import current_export
from ..ops.psamask import psa_mask
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter


@REWRITERS.register_module()
class PSAMask(FunctionRewriter):
    """One lookup; the original is an operator of mmcv that ONNX does not have."""

    target = 'mmcv.ops.psa_mask.PSAMask.forward'

    def __call__(self, origin: Callable, module: Any, input: Tensor) -> Tensor:
        size = module.mask_size
        return psa_mask(input, bool(module.psa_type_enum), (size, size) if isinstance(size, int) else tuple(size))


@REWRITERS.register_module()
class GeneratedKernels(FunctionRewriter):
    """A convolution with kernels that the network made (DMNet, K-Net), of a number and size that no image changes.

    The exporter wants to know them, and loses them where they were computed from sizes.
    """

    target = 'torch.nn.functional.conv2d'

    def __call__(
        self,
        origin: Callable,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: Any = 1,
    ) -> Tensor:
        if current_export() is not None and not isinstance(weight, nn.Parameter):
            weight, groups = weight.reshape(python_shape(weight)), python_int(groups)
        return origin(input, weight, bias, stride, padding, dilation, groups)


@REWRITERS.register_module()
class PointsOfTest(FunctionRewriter):
    """PointRend's most uncertain points (https://arxiv.org/abs/1912.08193), without a Python ``min`` of traced sizes.

    Where the image size is dynamic the number of points stays in the graph.
    """

    target = 'mmseg.models.decode_heads.point_head.PointHead.get_points_test'

    def __call__(
        self, origin: Callable, head: Any, seg_logits: Tensor, uncertainty_func: Callable, cfg: Any
    ) -> tuple[Tensor, Tensor]:
        uncertainty = uncertainty_func(seg_logits)
        height, width = static_size(seg_logits) or uncertainty.shape[-2:]
        pixels, wanted = height * width, cfg.subdivision_num_points
        number = at_most(pixels, wanted)
        indices = uncertainty.flatten(1).topk(number, dim=1)[1]
        x_step, y_step = 1.0 / width, 1.0 / height
        columns = width if isinstance(width, int) else size_tensor(uncertainty, -1)
        x = x_step / 2.0 + (indices % columns).float() * x_step
        y = y_step / 2.0 + (torch.div(indices, columns, rounding_mode='floor')).float() * y_step
        return indices, torch.stack([x, y], dim=-1)


@REWRITERS.register_module()
class FeatureFusion(FunctionRewriter):
    """DPT's fusion gets its second map in the first one's size; resizing to the same size changes nothing.

    The original resizes only where the sizes differ, which is where the patches of an image are odd in number.
    """

    target = 'mmseg.models.decode_heads.dpt_head.FeatureFusionBlock.forward'

    def __call__(self, origin: Callable, block: Any, x: Tensor, *others: Tensor) -> Tensor:
        from mmseg.models.utils import resize

        if static_size(x) is None:
            others = tuple(resize(other, size=x.shape[2:], mode='bilinear', align_corners=False) for other in others)
        return origin(block, x, *others)


@REWRITERS.register_module()
class CLIPTextEncoder(FunctionRewriter):
    """The embeddings of the class names as a constant: they depend on the weights and the config alone."""

    target = 'mmseg.models.text_encoder.clip_text_encoder.CLIPTextEncoder.forward'

    def __init__(self) -> None:
        self.embeddings: dict[nn.Module, Tensor] = {}

    def prepare(self, model: nn.Module) -> None:
        kind = self.target.removesuffix('.forward')
        with torch.no_grad():
            self.embeddings = {
                module: base.forward(module)  # what a subclass or a hook makes of it comes after
                for module in model.modules()
                for base in type(module).__mro__
                if f'{base.__module__}.{base.__qualname__}' == kind
            }

    def __call__(self, origin: Callable, encoder: nn.Module) -> Tensor:
        if encoder in self.embeddings:
            return self.embeddings[encoder]
        with tracing_paused():
            return origin(encoder)
