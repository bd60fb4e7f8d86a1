"""Every branch of Python code on a value, found by the draft mode of ``torch.export``.

A tracer takes each such branch as one image takes it and says nothing, or warns of some. The draft mode goes on where
``torch.export`` would stop, and keeps what it met.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import ExportError
from ..rewriting import FunctionRewriter, RewriteContext, of_exporter
from .allowed import AllowedLine, known_truth
from .explain import explain, function_at
from .torch_export import quiet, require, symbolic
from .tracing import ExportState, exporting


@dataclass(frozen=True)
class Branch:
    """A line at which Python asked for a value.

    Attributes:
        filename: of the source file.
        lineno: in it, from 1.
        function: dotted path of the function or method, as a rewriter's target.
        code: the line.
        taken: what the value was for this image.
    """

    filename: str
    lineno: int
    function: str
    code: str
    taken: str

    def __str__(self) -> str:
        return f'{self.filename}:{self.lineno} in {self.function}\n    {self.code}    [the value here: {self.taken}]'


def value_branches(
    task: Any, sample: Any, rewriters: Mapping[str, FunctionRewriter], allowed: Collection[AllowedLine] = ()
) -> list[Branch]:
    """The branches on values that are left in a wrapped model with its rewriters in place.

    Args:
        task: a :class:`mmdeploy_lite.tasks.BaseTask`.
        sample: an image.
        rewriters: by key.
        allowed: lines, of which those that say which way is right for every image are no branches.

    Returns:
        In the order in which they were met, each line once.

    Raises:
        UnsupportedError: torch is older than 2.9, or onnxscript is not installed.
        ExportError: the model cannot be followed at all.
    """
    require('an audit by torch.export')
    from ..rewriters.symbolic_values import Truth
    from . import symbolic_ops  # noqa: F401  (registers the operators)

    # the draft mode knows the values, and loses the line where another than PyTorch's own code asks for them
    rewriters = of_exporter(rewriters, symbolic=True)
    rewriters = {key: rewriter for key, rewriter in rewriters.items() if not isinstance(rewriter, Truth)}
    for rewriter in rewriters.values():
        rewriter.prepare(task.model)
    wrapper = task.wrapper().eval()
    args = tuple(torch.from_numpy(value) for value in task.feeds([sample] * task.batch_size).values())
    state = ExportState(pastes=task.pastes)
    with RewriteContext(rewriters), exporting(state), quiet(), torch.no_grad():
        try:
            with symbolic():
                program = torch.export.draft_export(wrapper, args, strict=False)
        except Exception as error:
            raise ExportError(f'the audit could not follow the model: {explain(error)}') from error
    found = _branches(program._report)
    return [branch for branch in found if known_truth(branch.filename, branch.lineno, allowed) is None]


def _branches(report: Any) -> list[Branch]:
    from torch._logging.structured import INTERN_TABLE  # not there before torch 2.3, which require() turns away

    found = []
    # the report has the names of files that no earlier one had
    names = {number: name for name, number in INTERN_TABLE.items()} | report.str_to_filename
    for failure in report.failures:
        if failure.failure_type.name != 'DATA_DEPENDENT_ERROR':
            continue
        for frame in reversed(failure.data['user_stack']):
            filename = names.get(frame['filename'], '')
            if not filename.startswith(_NOT_THE_MODELS):
                place = function_at(filename, frame['line'])
                name = frame['name'] if place is None else place.path
                found.append(Branch(filename, frame['line'], name, frame['loc'] or '', str(failure.data['result'])))
                break
    return found


_NOT_THE_MODELS = f'{Path(torch.__file__).parent}{os.sep}', f'{Path(__file__).resolve().parents[1]}{os.sep}'
