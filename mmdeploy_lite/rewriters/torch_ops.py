"""Primitives of PyTorch itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..export.operators import squeeze
from ..export.shapes import at_most, axis_size, python_int, python_shape, size_tensor, static_size, tracing_paused
from ..export.tracing import current_export, is_symbolic, is_tracing
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter, RewriteContext

_SWAPPING = (__name__, RewriteContext.__module__)


@REWRITERS.register_module()
class NotInOnnxExport(FunctionRewriter):
    """Tells the libraries that no export is running, so that the code that runs is the code that was tested.

    Their export branches are stale: mmdet 3.3 imports a module that no longer exists there, drops score thresholds
    and appends dummy boxes. PyTorch itself still gets the true answer.
    """

    target = 'torch.onnx.is_in_onnx_export'

    def __call__(self, origin: Callable) -> bool:
        frame = sys._getframe(1)
        while (caller := frame.f_globals.get('__name__', '')) in _SWAPPING:  # of enclosing contexts too
            frame = frame.f_back
        return origin() if caller == 'torch' or caller.startswith('torch.') else False


@REWRITERS.register_module()
class Squeeze(FunctionRewriter):
    """Drops the axes that have one element while tracing, by their numbers.

    Where the exporter does not know the size, ``squeeze(dim)`` becomes an ``If`` over it; for ``squeeze()`` without
    axes it takes the result's size for known, and freezes what is computed from it.
    """

    target = ('torch.squeeze', 'torch.Tensor.squeeze')

    def __call__(self, origin: Callable, input: Tensor, dim: Any = None) -> Tensor:
        shape = python_shape(input)
        dims = range(len(shape)) if dim is None else (dim,) if isinstance(dim, int) else dim
        if not all(-len(shape) <= axis < len(shape) for axis in dims):
            return origin(input, dim)  # which says what is wrong
        axes = sorted({axis % len(shape) for axis in dims} if shape else ())
        axes = [axis for axis in axes if isinstance(shape[axis], int) and shape[axis] == 1]
        return squeeze(input, axes) if axes else input


@REWRITERS.register_module()
class NewTensor(FunctionRewriter):
    """``x.new_tensor([a, b])`` of traced numbers stacks them; the original makes a constant of what they are now.

    Of Python numbers it is ``torch.tensor``, of which ``torch.export`` knows the values.
    """

    target = 'torch.Tensor.new_tensor'

    def __call__(self, origin: Callable, tensor: Tensor, data: Any, *args: Any, **kwargs: Any) -> Tensor:
        dtype = kwargs.get('dtype') or tensor.dtype
        device = kwargs.get('device') or tensor.device
        if isinstance(data, Tensor):
            return data.to(device=device, dtype=dtype).clone()
        if not _holds_tensor(data):
            if is_symbolic() and isinstance(data, (list, tuple)):
                return torch.tensor(data, dtype=dtype, device=device, requires_grad=kwargs.get('requires_grad', False))
            return origin(tensor, data, *args, **kwargs)
        if isinstance(data, (list, tuple)):
            return torch.stack([self(origin, tensor, item, dtype=dtype, device=device) for item in data])
        return torch.full((), data, dtype=dtype, device=device)


def _holds_tensor(data: Any) -> bool:
    if isinstance(data, (list, tuple)):
        return any(map(_holds_tensor, data))
    return isinstance(data, (Tensor, torch.SymInt, torch.SymFloat))


@REWRITERS.register_module()
class FixedSizes(FunctionRewriter):
    """Sizes are Python numbers where the export fixes them all; under the tracer they are traced ones.

    For tasks whose sizes follow from the image's alone, see :class:`~mmdeploy_lite.export.tracing.ExportState`. What
    the libraries compute from sizes (windows, padding, whether to resize) is then what it is in PyTorch.
    """

    target = ('torch.Tensor.shape', 'torch.Tensor.size')
    only = 'tracing'

    def __call__(self, origin: Callable, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        export = current_export()
        if export is None or not export.fixed_sizes:
            return origin(tensor, *args, **kwargs)
        with tracing_paused():
            return origin(tensor, *args, **kwargs)


@REWRITERS.register_module()
class Diag(FunctionRewriter):
    """The matrix with a vector on its diagonal, by comparing rows and columns; the exporter has no ``diag``."""

    target = 'torch.diag'

    def __call__(self, origin: Callable, input: Tensor, diagonal: int = 0, **kwargs: Any) -> Tensor:
        if input.dim() != 1 or diagonal or kwargs:
            return origin(input, diagonal, **kwargs)
        index = torch.arange(input.shape[0], device=input.device)
        return torch.where(index[:, None] == index, input[:, None], input.new_zeros(()))


@REWRITERS.register_module()
class AdaptiveMaxPool2d(FunctionRewriter):
    """Exact for every size: each cell's rows, then its columns, looked up and their maximum taken.

    The exporter takes sizes that divide and refuses the others. The cells are those of :class:`AdaptiveAvgPool2d`; the
    last pixel of a small one is looked up again until it has as many as the largest.
    """

    target = 'torch.nn.functional.adaptive_max_pool2d'

    def __call__(self, origin: Callable, input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
        if return_indices:
            return origin(input, output_size, return_indices)
        pair = (output_size, output_size) if isinstance(output_size, int) else tuple(output_size)
        size = static_size(input) or input.shape[-2:]
        for axis, extent, cells in zip((-2, -1), size, pair, strict=True):
            if cells is not None:
                input = _cell_maxima(input, axis, extent, cells)
        return input


def _cell_maxima(input: Tensor, axis: int, size: Any, cells: Any) -> Tensor:
    cell = torch.arange(cells, device=input.device)
    start = torch.div(cell * size, cells, rounding_mode='floor')
    end = torch.div((cell + 1) * size + cells - 1, cells, rounding_mode='floor')
    pixel = start[:, None] + torch.arange((size + cells - 1) // cells + 1, device=input.device)
    pixel = torch.minimum(pixel, end[:, None] - 1)
    looked_up = torch.index_select(input, axis, pixel.flatten())
    return looked_up.unflatten(axis, (cells, -1)).amax(axis)


@REWRITERS.register_module()
class Linspace(FunctionRewriter):
    """Of traced numbers, by ``arange``, rounded as PyTorch rounds it: each half from its own end.

    The exporter has no ``linspace`` between tensors, and divides by zero for a single step.
    """

    target = 'torch.linspace'

    def __call__(self, origin: Callable, start: Any, end: Any, steps: Any, **kwargs: Any) -> Tensor:
        if not any(isinstance(value, (Tensor, torch.SymInt, torch.SymFloat)) for value in (start, end, steps)):
            return origin(start, end, steps, **kwargs)
        dtype = kwargs.get('dtype') or torch.get_default_dtype()
        index = torch.arange(steps, dtype=dtype, device=kwargs.get('device'))
        last = size_tensor(index, 0).to(index) - 1
        step = (end - start) / last.clamp(min=1)
        # of a single step the start, of an odd number the middle from the end
        first_half = index < ((last + 1) / 2).floor().clamp(min=1)
        return torch.where(first_half, start + step * index, end - step * (last - index)).to(dtype)


@REWRITERS.register_module()
class GroupNorm(FunctionRewriter):
    """Mean and deviation of the rows first, and of these then, with every size said.

    The exporter's own ``InstanceNormalization`` adds up a group's numbers one after the other in ONNX Runtime: of half
    a million, what it answers is off by 2e-6 of the deviation, 50 times what PyTorch's is, and this is by twice that.
    Its ``Reshape`` to (0, groups, -1) is no shape of no RoIs.
    """

    target = 'torch.nn.functional.group_norm'

    def __call__(
        self,
        origin: Callable,
        input: Tensor,
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        if not (is_tracing() or is_symbolic()):
            return origin(input, num_groups, weight, bias, eps)
        channels = python_shape(input)[1]
        *outer, width = input.shape[2:] or (1,)
        rows: Any = channels // num_groups
        for extent in outer:
            rows = rows * extent
        # as it stands ONNX Runtime makes (0, groups, rows, -1) of it again; of a size that it cannot follow it does not
        count = at_most(axis_size(input, 0), 2**31 - 1) if is_tracing() else input.shape[0]
        grouped = input.reshape(count, num_groups, rows, width)
        centered = grouped - _mean(grouped)
        scale = torch.rsqrt(_mean(centered.square()) + eps)
        ones = [1] * (input.dim() - 2)
        scale = scale.expand(-1, -1, channels // num_groups, 1).reshape(count, channels, *ones)
        scale = scale if weight is None else scale * weight.reshape(channels, *ones)
        normed = centered.reshape(input.shape) * scale
        return normed if bias is None else normed + bias.reshape(channels, *ones)


def _mean(grouped: Tensor) -> Tensor:
    """(N, groups, 1, 1) means of (N, groups, rows, width), of each row first: few numbers are added up at a time."""
    return grouped.mean(dim=-1, keepdim=True).mean(dim=-2, keepdim=True)


@REWRITERS.register_module()
class AdaptiveAvgPool2d(FunctionRewriter):
    """Exact for every size: the product with two averaging matrices, one per axis.

    ONNX has no adaptive pooling; the exporter takes sizes that divide and refuses the others. Cell i of n averages
    the pixels from ``floor(i * size / n)`` to ``ceil((i + 1) * size / n)``, as PyTorch does. Where it divides, and to
    one cell, the original's AveragePool and GlobalAveragePool are exact and stay.
    """

    target = 'torch.nn.functional.adaptive_avg_pool2d'

    def __call__(self, origin: Callable, input: Tensor, output_size: Any) -> Tensor:
        pair = (output_size, output_size) if isinstance(output_size, int) else tuple(output_size)
        if not any(isinstance(cells, Tensor) for cells in pair) and pair == (1, 1):
            return origin(input, output_size)
        size = static_size(input)
        if size is not None:
            pair = tuple(
                extent if cells is None else python_int(cells) for extent, cells in zip(size, pair, strict=True)
            )
            if all(extent % cells == 0 for extent, cells in zip(size, pair, strict=True)):
                kernel = tuple(extent // cells for extent, cells in zip(size, pair, strict=True))
                return F.avg_pool2d(input, kernel, kernel)
        else:
            size = input.shape[-2:]
        rows, columns = (averaging_matrix(extent, cells, input) for extent, cells in zip(size, pair, strict=True))
        if rows is not None:
            input = rows @ input
        return input if columns is None else input @ columns.t()


def averaging_matrix(size: Any, cells: Any, like: Tensor) -> Tensor | None:
    """(cells, size) weights that average each cell's pixels; None where every pixel is its own cell (``cells`` is
    None).
    """
    if cells is None:
        return None
    pixel = torch.arange(size, device=like.device)
    cell = torch.arange(cells, device=like.device)[:, None]
    start = torch.div(cell * size, cells, rounding_mode='floor')
    end = torch.div((cell + 1) * size + cells - 1, cells, rounding_mode='floor')
    inside = ((pixel >= start) & (pixel < end)).to(like)
    return inside / (end - start).to(like)
