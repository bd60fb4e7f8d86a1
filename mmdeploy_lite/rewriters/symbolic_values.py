"""Numbers of rows that values decide, under ``torch.export``: symbols that nobody knows while exporting.

They are taken for two or more, see :data:`~mmdeploy_lite.export.shapes.SOME`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from mmengine.structures import InstanceData
from torch import Tensor

from ..export.allowed import known_truth
from ..export.shapes import SOME, is_unknown
from ..export.tracing import current_export, is_symbolic
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter

UNKNOWN = 99_991
"""What ``len`` says of such a number: it cannot say a symbol. Fits no tensor."""


@REWRITERS.register_module()
class Length(FunctionRewriter):
    """``len`` of a tensor: :data:`UNKNOWN`, so that what compares it with none goes on, and SplitOfOne knows it."""

    target = 'torch.Tensor.__len__'
    only = 'symbolic'

    def __call__(self, origin: Callable, tensor: Tensor) -> int:
        if is_symbolic() and tensor.dim() and is_unknown(tensor.shape[0]):
            return UNKNOWN
        return origin(tensor)


@REWRITERS.register_module()
class InstanceFields(FunctionRewriter):
    """A field of as many rows; the original compares it with the others' by ``len``."""

    target = (
        'mmengine.structures.instance_data.InstanceData.__setattr__',
        'mmengine.structures.instance_data.InstanceData.__setitem__',
    )
    only = 'symbolic'

    def __call__(self, origin: Callable, data: Any, name: str, value: Any) -> None:
        if is_symbolic() and isinstance(value, Tensor):
            super(InstanceData, data).__setattr__(name, value)
        else:
            origin(data, name, value)


@REWRITERS.register_module()
class Nonzero(FunctionRewriter):
    """As many rows as there are, and some: the libraries return early for none, and ``squeeze`` drops the axis of one.

    An index by a mask, ``x[mask]``, asks for them too.
    """

    target = ('torch.nonzero', 'torch.Tensor.nonzero')
    only = 'symbolic'

    def __call__(self, origin: Callable, input: Tensor, *args: Any, **kwargs: Any) -> Any:
        rows = origin(input, *args, **kwargs)
        if is_symbolic():
            count = (rows[0] if isinstance(rows, tuple) else rows).shape[0]
            elements = input.numel()
            if is_unknown(count) and not (isinstance(elements, int) and elements <= SOME):  # which would be all of them
                torch._check(count >= SOME)
        return rows


@REWRITERS.register_module()
class Truth(FunctionRewriter):
    """A branch on a tensor's value goes the way that is right for every image, at the lines where one is; see
    :attr:`~mmdeploy_lite.export.allowed.AllowedLine.truth`.
    """

    target = 'torch.Tensor.__bool__'
    only = 'symbolic'

    def __call__(self, origin: Callable, tensor: Tensor) -> bool:
        state = current_export()
        if state is not None and state.symbolic:
            filename, lineno = _asking()
            truth = known_truth(filename, lineno, state.allowed)
            if truth is not None:
                return truth
        return origin(tensor)


def _asking() -> tuple[str, int]:
    """File and line of the first caller that is no part of this package."""
    frame = sys._getframe(2)
    while frame.f_globals.get('__name__', '').partition('.')[0] == __name__.partition('.')[0]:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


@REWRITERS.register_module()
class ShapeAsTensor(FunctionRewriter):
    """The shape as numbers of the graph; the original reads a tensor's memory, and there is none."""

    target = 'torch._shape_as_tensor'
    only = 'symbolic'

    def __call__(self, origin: Callable, tensor: Tensor) -> Tensor:
        if not is_symbolic():
            return origin(tensor)
        shape = tuple(tensor.shape)
        if all(isinstance(size, int) for size in shape):
            return torch.tensor(shape)
        return torch.stack([torch.full((), size, dtype=torch.int64) for size in shape])


@REWRITERS.register_module()
class FloatRange(FunctionRewriter):
    """``torch.arange(0, 4.0)`` is of floats; PyTorch's translation makes integers of it where one of them is one."""

    target = 'torch.arange'
    only = 'symbolic'

    def __call__(self, origin: Callable, *args: Any, **kwargs: Any) -> Tensor:
        numbers = (*args, *(kwargs.get(name) for name in ('start', 'end', 'step')))
        if is_symbolic() and kwargs.get('dtype') is None and any(isinstance(number, float) for number in numbers):
            kwargs['dtype'] = torch.get_default_dtype()
        return origin(*args, **kwargs)
