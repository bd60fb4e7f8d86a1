"""What is known of a size while tracing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .tracing import current_export, is_symbolic

SOME = 2
"""The least that a number is taken for which values decide under ``torch.export``: as if the image showed objects."""


@contextlib.contextmanager
def tracing_paused() -> Iterator[None]:
    """What runs inside is not recorded, and sizes are Python ints there; what it makes is a constant of the graph."""
    if is_symbolic():
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes(), torch._C.DisableTorchFunction():
            yield
        return
    state = torch._C._get_tracing_state()
    if state is None:
        yield
        return
    torch._C._set_tracing_state(None)
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)


def python_shape(tensor: Tensor) -> tuple[int, ...]:
    """The shape as Python ints, as it is now; under the tracer ``tensor.shape`` holds traced numbers.

    Only for axes whose size no image can change, such as channels; what an image can change is a symbol under
    ``torch.export``.
    """
    if is_symbolic():
        return tuple(tensor.shape)
    with tracing_paused():
        return tuple(int(extent) for extent in tensor.shape)


def python_int(value: Any) -> int:
    """A number as a Python int; under the tracer ``tensor.size(0)`` is a traced one.

    Only where no image can change it, as for :func:`python_shape`.
    """
    if isinstance(value, torch.SymInt):
        return value
    with tracing_paused():
        return int(value)


def axis_size(tensor: Tensor, axis: int) -> Any:
    """A size as a number of the graph: 0-dim int64 under the tracer, whatever the exporter knows of it; under
    ``torch.export`` a symbol, or an int where no image can change it.
    """
    return tensor.shape[axis] if is_symbolic() else torch._shape_as_tensor(tensor)[axis]


def is_unknown(size: Any) -> bool:
    """Whether values decide a size under ``torch.export``."""
    if not isinstance(size, torch.SymInt):
        return False
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return bool(free_unbacked_symbols(size))


def size_tensor(tensor: Tensor, axis: int) -> Tensor:
    """A size as a 0-dim int64 tensor of the graph."""
    size = axis_size(tensor, axis)
    return size if isinstance(size, Tensor) else torch.full((), size, dtype=torch.int64, device=tensor.device)


def at_least(size: Any, limit: int) -> Any:
    """The larger of a number of the graph, see :func:`axis_size`, and a Python number."""
    return size.clamp(min=limit) if isinstance(size, Tensor) else torch.sym_max(size, limit)


def at_most(size: Any, limit: int) -> Any:
    """The smaller of a number of the graph, see :func:`axis_size`, and a Python number."""
    if isinstance(size, Tensor):
        return torch.minimum(size, torch.full_like(size, limit))
    return torch.sym_min(size, limit)


def static_size(tensor: Tensor) -> tuple[int, int] | None:
    """(H, W) of a traced (N, C, H, W) tensor as Python ints, or None where the export keeps them dynamic."""
    export = current_export()
    if export is not None and export.dynamic:
        return None
    height, width = python_shape(tensor)[-2:]
    return height, width


@contextlib.contextmanager
def sizes_traced() -> Iterator[None]:
    """What runs inside keeps sizes in the graph, also where the export fixes them."""
    export = current_export()
    if export is None:
        yield
        return
    before, export.fixed_sizes = export.fixed_sizes, False
    try:
        yield
    finally:
        export.fixed_sizes = before


@contextlib.contextmanager
def sizes_fixed() -> Iterator[None]:
    """What runs inside sees height and width as fixed, also where those of the image are not."""
    export = current_export()
    if export is None:
        yield
        return
    before = export.dynamic, export.fixed_sizes
    export.dynamic, export.fixed_sizes = False, True
    try:
        yield
    finally:
        export.dynamic, export.fixed_sizes = before
