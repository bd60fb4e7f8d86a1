"""CARAFE, composed of standard operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..ops.carafe import reassemble
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter


@REWRITERS.register_module()
class Carafe(FunctionRewriter):
    """A product and a sum for each tap of the kernels; mmcv's own export gives an operator of its domain."""

    target = ('mmcv.ops.carafe.carafe', 'mmcv.ops.carafe.carafe_naive')

    def __call__(
        self, origin: Callable, features: Tensor, masks: Tensor, kernel_size: int, group_size: int, scale_factor: int
    ) -> Tensor:
        return reassemble(features, masks, kernel_size, group_size, scale_factor)


@REWRITERS.register_module()
class CarafeAdd(FunctionRewriter):
    """Cuts the larger map to the smaller one's size, of any image; the original freezes whether one is larger."""

    target = 'mmdet.models.necks.fpn_carafe.FPN_CARAFE.tensor_add'

    def __call__(self, origin: Callable, neck: Any, a: Tensor, b: Tensor) -> Tensor:
        return a + b[:, :, : a.shape[2], : a.shape[3]]
