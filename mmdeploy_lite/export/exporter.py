"""What an exporter is: from a wrapped model to a graph that is not audited yet."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import onnx
from torch import Tensor, nn

from ..errors import DISK_ERRORS, DeployError, ExportError
from .explain import explain


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


class Exporter(abc.ABC):
    """Of the registry EXPORTERS."""

    symbolic: ClassVar[bool] = False
    """It runs the model on tensors without values, see :attr:`FunctionRewriter.only`."""

    @abc.abstractmethod
    def export(
        self,
        wrapper: nn.Module,
        args: Sequence[Tensor],
        input_names: Sequence[str],
        output_names: Sequence[str],
        dynamic_axes: Mapping[str, Mapping[int, str]],
    ) -> ExportedGraph:
        """Export and translate.

        Args:
            wrapper: takes ``args``, returns the outputs in the order of ``output_names``.
            args: the inputs to export with.
            input_names: of the graph, in the order of ``args``.
            output_names: of the graph.
            dynamic_axes: per input and output name, the names of axes that are not fixed.

        Raises:
            ExportError: it failed; the message has its last words and the innermost line of the model's code.
        """


@contextlib.contextmanager
def explained(more: Callable[[Exception], str] = lambda error: '') -> Iterator[None]:
    """Whatever fails inside is an :class:`ExportError` in the user's terms; a full disk and our own errors stay.

    Args:
        more: what else there is to say of an error.
    """
    try:
        yield
    except DeployError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            raise
        raise ExportError(explain(error) + more(error)) from error
