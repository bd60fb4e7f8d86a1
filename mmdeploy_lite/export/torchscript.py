"""The exporter through TorchScript tracing."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn

from ..registry import EXPORTERS
from .choices import close_choices
from .explain import explain_operator
from .exporter import ExportedGraph, Exporter, TracedWarning, explained
from .loops import close_loops
from .pads import explicit_pads
from .reshapes import take_zeros_literally


@EXPORTERS.register_module()
class TorchScriptExporter(Exporter):
    """``torch.onnx.export(dynamo=False)``: runs the model once and records the operators.

    Args:
        opset: of the default domain; 17 is the oldest with all operators used here (RoiAlign of 16,
            LayerNormalization of 17).
    """

    def __init__(self, opset: int = 17) -> None:
        self.opset = opset

    def export(
        self,
        wrapper: nn.Module,
        args: Sequence[Tensor],
        input_names: Sequence[str],
        output_names: Sequence[str],
        dynamic_axes: Mapping[str, Mapping[int, str]],
    ) -> ExportedGraph:
        """Trace and convert, see :meth:`Exporter.export`."""
        folder = tempfile.TemporaryDirectory()
        path = str(Path(folder.name, 'traced.onnx'))  # a file: more than 2 GB go beside it
        with folder, _record_tracer_warnings() as recorded, torch.no_grad():
            with explained(lambda error: explain_operator(error, lambda: wrapper(*args))):
                torch.onnx.export(
                    wrapper,
                    tuple(args),
                    path,
                    input_names=list(input_names),
                    output_names=list(output_names),
                    dynamic_axes={name: dict(axes) for name, axes in dynamic_axes.items()},
                    opset_version=self.opset,
                    do_constant_folding=True,
                    **_LEGACY,
                )
            model = onnx.load(path)
        close_loops(model)
        close_choices(model)
        take_zeros_literally(model)
        explicit_pads(model)
        return ExportedGraph(model, recorded)


# torch before 2.5 has no `dynamo` argument and only this exporter; since 2.9 the other one is the default
_LEGACY = {'dynamo': False} if 'dynamo' in torch.onnx.export.__code__.co_varnames else {}


@contextlib.contextmanager
def _record_tracer_warnings() -> Iterator[list[TracedWarning]]:
    """Collect the tracer's warnings; the exporter's other chatter (deprecation, constant folding) says nothing to
    users.
    """
    recorded: list[TracedWarning] = []
    logger = logging.getLogger('torch.onnx')
    level = logger.level
    logger.setLevel(logging.ERROR)
    # it prints the whole graph where an operator is not supported, whatever torch.onnx.disable_log() was told
    log = torch._C._jit_onnx_log
    torch._C._jit_onnx_log = lambda *args: None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        try:
            yield recorded
        finally:
            logger.setLevel(level)
            torch._C._jit_onnx_log = log
            for item in caught:
                if issubclass(item.category, torch.jit.TracerWarning):
                    recorded.append(TracedWarning(item.filename, item.lineno, str(item.message)))
