"""What is known of a size while tracing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .tracing import current_export


@contextlib.contextmanager
def tracing_paused() -> Iterator[None]:
    """What runs inside is not recorded, and sizes are Python ints there."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)


def python_shape(tensor: Tensor) -> tuple[int, ...]:
    """The shape as Python ints, as it is now; under the tracer ``tensor.shape`` holds traced numbers.

    Only for axes whose size no image can change, such as channels.
    """
    with tracing_paused():
        return tuple(int(extent) for extent in tensor.shape)


def python_int(value: Any) -> int:
    """A number as a Python int; under the tracer ``tensor.size(0)`` is a traced one.

    Only where no image can change it, as for :func:`python_shape`.
    """
    with tracing_paused():
        return int(value)


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
