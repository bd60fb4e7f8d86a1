"""Primitives of mmseg's segmentors: resize."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..registry import REWRITERS
from ..rewriting import FunctionRewriter


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
