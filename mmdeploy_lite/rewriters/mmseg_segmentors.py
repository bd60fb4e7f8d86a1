"""Primitives of mmseg's segmentors: what becomes of the logits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from ..export.choices import choose
from ..export.shapes import axis_size, sizes_traced
from ..export.tracing import current_export, is_tracing
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter

_own_sizes: list[list[tuple[Any, Any]]] = []


@contextlib.contextmanager
def _kept_as_they_are() -> Iterator[list[tuple[Any, Any]]]:
    """``resize`` answers its input; what comes is (h, w) of each."""
    _own_sizes.append([])
    try:
        yield _own_sizes[-1]
    finally:
        _own_sizes.pop()


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
        kept = [sample.new() for sample in data_samples]
        with sizes_traced(), _kept_as_they_are() as sizes:
            kept = origin(model, seg_logits, kept)
        with sizes_traced():
            results = origin(model, seg_logits, data_samples)
        for same, result, (height, width) in zip(kept, results, sizes, strict=True):
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
        if _own_sizes:
            _own_sizes[-1].append((axis_size(input, 2), axis_size(input, 3)))
            return input
        if size is not None and not isinstance(size, (int, Tensor)):
            size = tuple(size)
        return origin(input, size, scale_factor, mode, align_corners, warning=False)
