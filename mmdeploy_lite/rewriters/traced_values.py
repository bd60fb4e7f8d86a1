"""Where Python would make something else of a traced value, or of nothing."""

from __future__ import annotations

import linecache
import math
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..export.shapes import SOME, is_unknown, python_int, python_shape
from ..export.tracing import is_symbolic, is_tracing
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter

_RANGE = re.compile(r'(?<![\w.])range\(')  # and no arange


@REWRITERS.register_module()
class ViewOfRows(FunctionRewriter):
    """``x.view(n, -1, k)`` of n rows with the other size as a number; ONNX has no shape (0, -1, k), for no rows."""

    target = ('torch.Tensor.view', 'torch.Tensor.reshape')
    only = 'tracing'

    def __call__(self, origin: Callable, tensor: Tensor, *shape: Any, **kwargs: Any) -> Tensor:
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        if not is_tracing() or kwargs or len(sizes) < 2 or tensor.dim() != 2 or not isinstance(sizes[0], Tensor):
            return origin(tensor, *shape, **kwargs)
        rows, columns = python_shape(tensor)
        others = [size for size in sizes[1:] if not isinstance(size, Tensor)]
        if others.count(-1) != 1 or len(others) < len(sizes) - 1 or python_int(sizes[0]) != rows:
            return origin(tensor, *shape, **kwargs)
        missing = columns // math.prod(size for size in others if size != -1)
        return origin(tensor, -1, *(missing if size == -1 else size for size in others))


@REWRITERS.register_module()
class FrozenRange(FunctionRewriter):
    """Warns where ``range(n)`` makes a Python number of a traced one: the tracer itself says nothing.

    Functions that take a number ask for the same, and keep what was traced.
    """

    target = 'torch.Tensor.__index__'
    only = 'tracing'

    def __call__(self, origin: Callable, tensor: Tensor) -> int:
        caller = sys._getframe(2)
        if is_tracing() and _RANGE.search(linecache.getline(caller.f_code.co_filename, caller.f_lineno)):
            warnings.warn('range() of a traced number is frozen', torch.jit.TracerWarning, stacklevel=3)
        return origin(tensor)


@REWRITERS.register_module()
class DeepCopy(FunctionRewriter):
    """A copy of a traced tensor is a traced tensor; the original silently makes a constant of zeros of it."""

    target = 'torch.Tensor.__deepcopy__'

    def __call__(self, origin: Callable, tensor: Tensor, memo: Any) -> Tensor:
        exported = (is_tracing() or is_symbolic()) and not isinstance(tensor, nn.Parameter)
        return tensor.clone() if exported else origin(tensor, memo)


@REWRITERS.register_module()
class Ceil(FunctionRewriter):
    """``math.ceil`` of a traced number is one; the original makes a Python number of it."""

    target = 'math.ceil'
    only = 'tracing'

    def __call__(self, origin: Callable, x: Any, /) -> Any:
        return torch.ceil(x).long() if isinstance(x, Tensor) else origin(x)


@REWRITERS.register_module()
class Interpolate(FunctionRewriter):
    """No channels resized are no channels; the original refuses them, and as many as there are objects may be none."""

    target = 'torch.nn.functional.interpolate'

    def __call__(
        self, origin: Callable, input: Tensor, size: Any = None, scale_factor: Any = None, *args: Any, **kwargs: Any
    ) -> Tensor:
        if is_symbolic() and isinstance(size, (tuple, list)):
            size = [_some(extent) for extent in size]
        if is_tracing() or input.numel() or input.shape[0] and input.shape[1]:
            return origin(input, size, scale_factor, *args, **kwargs)
        resized = origin(input.new_zeros(1, 1, *input.shape[2:]), size, scale_factor, *args, **kwargs)
        return resized.new_zeros(*input.shape[:2], *resized.shape[2:])


def _some(extent: Any) -> Any:
    """A size as a number of which ``torch.export`` knows that it is :data:`SOME`, as it asks where corners align."""
    extent = extent.item() if isinstance(extent, Tensor) else extent
    if is_unknown(extent):
        torch._check(extent >= SOME)
    return extent


@REWRITERS.register_module()
class FieldsInOrder(FunctionRewriter):
    """The fields of a data element by name: mmengine has them in a set, whose order is another in every process, and
    with it the order of nodes and the bytes of the file.
    """

    target = 'mmengine.structures.base_data_element.BaseDataElement.keys'

    def __call__(self, origin: Callable, element: Any) -> list[str]:
        return sorted(origin(element))
