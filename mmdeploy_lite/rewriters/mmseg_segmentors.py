"""Primitives of mmseg's segmentors: what becomes of the logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..export.choices import choose
from ..export.shapes import axis_size, sizes_traced
from ..export.tracing import current_export, is_tracing
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter, RewriteContext


class _OwnSize(FunctionRewriter):
    """Answers what is to be resized as it is.

    Attributes:
        sizes: (h, w) of each, as numbers of the graph.
    """

    target = 'mmseg.models.utils.wrappers.resize'

    def __init__(self) -> None:
        self.sizes: list[tuple[Any, Any]] = []

    def __call__(self, origin: Callable, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        self.sizes.append((axis_size(input, 2), axis_size(input, 3)))
        return input


@REWRITERS.register_module()
class PostprocessResult(FunctionRewriter):
    """From here on sizes follow from ``ori_shape`` too, which is an input of the file: they stay in the graph.

    Where ``ori_shape`` is the size that the logits have, resizing them changes nothing, and their classes are chosen
    without writing them once more.
    """

    target = 'mmseg.models.segmentors.base.BaseSegmentor.postprocess_result'

    def __call__(self, origin: Callable, model: Any, seg_logits: Tensor, data_samples: Any = None) -> Any:
        export = current_export()
        if data_samples is None or not is_tracing() or export is None or export.wants_logits:
            with sizes_traced():
                return origin(model, seg_logits, data_samples)
        own = _OwnSize()
        with sizes_traced():
            with RewriteContext({'own_size': own}):
                kept = origin(model, seg_logits, [sample.new() for sample in data_samples])
            results = origin(model, seg_logits, data_samples)
        if len(own.sizes) != len(results):  # it does not resize each image once, as mmseg's own does
            return results
        for same, result, (height, width) in zip(kept, results, own.sizes, strict=True):
            wanted = result.metainfo['ori_shape']
            enough = (height == wanted[0]) & (width == wanted[1])
            ways = [same.pred_sem_seg.data], [result.pred_sem_seg.data]
            result.pred_sem_seg.set_data({'data': choose(enough, *ways)[0]})
        return results


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
