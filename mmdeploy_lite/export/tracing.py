"""What rewriters may ask and tell about the export that is running."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class ExportState:
    """The export that is running.

    Attributes:
        dynamic: height and width of the image are not fixed in the graph.
        pastes: masks over boxes are pasted into the image.
        wants_logits: the scores of all classes are an output.
        fixed_sizes: all sizes follow from the image's, which is fixed: they are numbers, not part of the graph.
        rejected_pending: candidates with the score REJECTED are on their way; NMS, which drops them, clears it.
        symbolic: ``torch.export`` runs: tensors have no values, and sizes that an image can change are symbols.
        allowed: lines of the model's code that somebody vouched for, see :class:`~.allowed.AllowedLine`.
    """

    dynamic: bool = False
    fixed_sizes: bool = False
    pastes: bool = True
    wants_logits: bool = False
    rejected_pending: bool = False
    symbolic: bool = False
    allowed: tuple[Any, ...] = ()


_STATE: ContextVar[ExportState | None] = ContextVar('mmdeploy_lite_export', default=None)


def current_export() -> ExportState | None:
    """The export that is running, or None: this project's own flag, in place of ``torch.onnx.is_in_onnx_export``."""
    return _STATE.get()


def is_tracing() -> bool:
    """Whether the tracer records operators; an audit also runs the rewritten model plainly."""
    return torch._C._get_tracing_state() is not None


def is_symbolic() -> bool:
    """Whether ``torch.export`` records operators."""
    state = _STATE.get()
    return state is not None and state.symbolic


def note_rejected(pending: bool) -> None:
    """Say that rejected candidates were made (True) or dropped (False)."""
    if (state := _STATE.get()) is not None:
        state.rejected_pending = pending


@contextlib.contextmanager
def exporting(state: ExportState) -> Iterator[ExportState]:
    """Mark the code inside as part of an export."""
    token = _STATE.set(state)
    try:
        yield state
    finally:
        _STATE.reset(token)
