"""The exporter through TorchScript tracing."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn

from ..errors import DISK_ERRORS, DeployError, ExportError
from ..registry import EXPORTERS
from .explain import explain, explain_operator
from .loops import close_loops
from .pads import explicit_pads
from .reshapes import take_zeros_literally


@dataclass(frozen=True)
class TracedWarning:
    """A warning that the tracer gave: at this line a traced value became a Python value.

    Attributes:
        filename: of the source file.
        lineno: in it, from 1.
        message: the tracer's words.
    """

    filename: str
    lineno: int
    message: str


@dataclass
class ExportedGraph:
    """What an exporter returns.

    Attributes:
        model: before any optimization of this package's.
        warnings: the signs of what the tracer froze.
        modules: qualified names of the modules that nodes come from; None where the nodes' names say it.
    """

    model: onnx.ModelProto
    warnings: list[TracedWarning] = field(default_factory=list)
    modules: frozenset[str] | None = None


@EXPORTERS.register_module()
class TorchScriptExporter:
    """``torch.onnx.export(dynamo=False)``: runs the model once and records the operators.

    Args:
        opset: of the default domain; 17 is the oldest with all operators used here (RoiAlign of 16,
            LayerNormalization of 17).
    """

    symbolic = False

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
        """Trace and convert.

        Args:
            wrapper: takes ``args``, returns the outputs in the order of ``output_names``.
            args: the inputs to trace with.
            input_names: of the graph, in the order of ``args``.
            output_names: of the graph.
            dynamic_axes: per input and output name, the names of axes that are not fixed.

        Raises:
            ExportError: the exporter failed; the message has its last words and the innermost line of the model's code.
        """
        folder = tempfile.TemporaryDirectory()
        path = str(Path(folder.name, 'traced.onnx'))  # a file: more than 2 GB go beside it
        with folder, _record_tracer_warnings() as recorded, torch.no_grad():
            try:
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
            except DeployError:
                raise
            except Exception as error:
                if isinstance(error, OSError) and error.errno in DISK_ERRORS:
                    raise
                where = explain_operator(error, lambda: wrapper(*args))
                raise ExportError(explain(error) + where) from error
            model = onnx.load(path)
        close_loops(model)
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
