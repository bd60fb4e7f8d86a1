"""The exporter through ``torch.export``."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from traceback import FrameSummary
from typing import Any

import onnx
import torch
from torch import Tensor, fx, nn

from ..errors import ExportError, UnsupportedError
from ..registry import EXPORTERS
from .exporter import ExportedGraph, Exporter, TracedWarning, explained
from .tracing import ExportState, current_export

NEEDS = (2, 9)
"""Of torch: the first whose exporter takes sizes that depend on values and translations of operators."""


@EXPORTERS.register_module()
class TorchExportExporter(Exporter):
    """``torch.export`` and PyTorch's own translation of its graph to ONNX.

    Tensors have no values while it runs: a branch of Python code on one stops it, by name, where the tracer of
    :class:`~mmdeploy_lite.export.TorchScriptExporter` takes the branch that one image takes.

    Args:
        opset: of the default domain; 18 is the oldest that PyTorch translates to.

    Raises:
        UnsupportedError: torch is older than 2.9, or onnxscript is not installed.
    """

    symbolic = True

    def __init__(self, opset: int = 18) -> None:
        require('TorchExportExporter')
        if opset < 18:
            raise UnsupportedError(f'TorchExportExporter writes opset 18 or newer, not {opset}')
        self.opset = opset

    def export(
        self,
        wrapper: nn.Module,
        args: Sequence[Tensor],
        input_names: Sequence[str],
        output_names: Sequence[str],
        dynamic_axes: Mapping[str, Mapping[int, str]],
    ) -> ExportedGraph:
        """Export and translate, see :meth:`Exporter.export`."""
        from .symbolic_ops import translations

        inputs = tuple(arg.clone() for arg in args)  # which axes are free is noted on them
        shapes = _free_axes(input_names, dynamic_axes)
        with quiet(), torch.no_grad(), explained():
            with symbolic():
                program = torch.export.export(_Positional(wrapper), inputs, dynamic_shapes=shapes, strict=False)
            _refuse_limits(program, input_names)
            modules = frozenset(_modules(program.graph))
            result = torch.onnx.export(
                program,
                (),
                input_names=list(input_names),
                output_names=list(output_names),
                opset_version=self.opset,
                dynamo=True,
                optimize=False,
                verbose=False,
                custom_translation_table=translations(),
            )
            result.optimize()
            _register_constants(result.model)
        model = result.model_proto
        _name_axes(model.graph, dynamic_axes)
        return ExportedGraph(model, list(_comparisons(program)), modules)


def _register_constants(model: Any) -> None:
    """Add the constants that nodes read and the graph does not have, in place: onnxscript's rule that makes a Clip of
    Min and Max loses those of the second Clip of one value.
    """
    initializers = model.graph.initializers
    for node in model.graph.all_nodes():
        for value in node.inputs:
            lost = value is not None and value.producer() is None and value.const_value is not None
            if lost and initializers.get(value.name) is None and not value.is_graph_input():
                model.graph.register_initializer(value)


def _comparisons(program: torch.export.ExportedProgram) -> Iterator[TracedWarning]:
    """Where the model's code compared sizes that are free: the branch is frozen as it falls for this image.

    PyTorch keeps each such comparison as a guard, and leaves it to whoever runs the graph. What its own operators ask
    (that a kernel fits, that concatenated maps are of one size) is an error in PyTorch too, and whether there is
    anything at all is so for every image.
    """
    own = f'{Path(torch.__file__).parent}{os.sep}'
    values = (node.meta.get('val') for node in program.graph.nodes)
    mode = next((value.fake_mode for value in values if hasattr(value, 'fake_mode')), None)
    for guard in getattr(getattr(mode, 'shape_env', None), 'guards', ()):
        place = guard.sloc.framework_loc
        known = isinstance(place, FrameSummary)
        if known and place.filename.startswith(own) or _is_of_any(guard.expr):
            continue
        filename, line = (place.filename, place.lineno or 0) if known else ('', 0)
        yield TracedWarning(filename, line, f'sizes are compared: {guard.expr}')


def _is_of_any(condition: Any) -> bool:
    """Whether a condition on sizes only says that there is something, a product of sizes that is not, or above, zero;
    or is so by what is known of them. A remainder or a difference that is not zero says more.
    """
    import sympy  # torch's own

    if condition == sympy.true:
        return True
    above = getattr(condition, 'rel_op', None) in ('!=', '>') and condition.rhs == 0
    factors = condition.lhs.as_powers_dict() if above else ()
    return above and all(part.is_Symbol or part.is_number and part > 0 or _is_part(part) for part in factors)


def _is_part(expression: Any) -> bool:
    """Whether it is a size divided by a number: what a map has left of the image's pixels."""
    kind = type(expression).__name__
    if kind == 'floor':
        return _is_part(expression.args[0])
    if kind not in ('FloorDiv', 'CleanDiv', 'Mul'):
        return False
    return all(part.is_Symbol or part.is_number and part > 0 for part in expression.args)


def _name_axes(graph: onnx.GraphProto, dynamic_axes: Mapping[str, Mapping[int, str]]) -> None:
    """Names for the axes that are not fixed, and nothing of where the exporter ran, in place."""
    for value in [*graph.input, *graph.output]:
        for axis, name in dynamic_axes.get(value.name, {}).items():
            value.type.tensor_type.shape.dim[axis].dim_param = name
    for entry in [graph, *graph.node, *graph.input, *graph.output, *graph.initializer, *graph.value_info]:
        del entry.metadata_props[:]
    del graph.value_info[:]


def _modules(graph: fx.Graph) -> Iterator[str]:
    """Qualified names of the modules that operators come from, those of regions that are graphs of their own too."""
    for node in graph.nodes:
        for name, _ in node.meta.get('nn_module_stack', {}).values():
            yield name.removeprefix('wrapper.')
        inner = getattr(graph.owning_module, str(node.target), None) if node.op == 'get_attr' else None
        if isinstance(inner, fx.GraphModule):
            yield from _modules(inner.graph)


def _refuse_limits(program: torch.export.ExportedProgram, input_names: Sequence[str]) -> None:
    """A size that the model's code compared with something is no free size: PyTorch notes it as a limit, and the graph
    is wrong beyond it.

    Raises:
        ExportError: with the input and the limit.
    """
    places = [node for node in program.graph.nodes if node.op == 'placeholder'][-len(input_names) :]
    for name, node in zip(input_names, places, strict=True):
        for axis, size in enumerate(node.meta['val'].shape):
            limits = program.range_constraints.get(getattr(getattr(size, 'node', None), 'expr', None))
            if limits is not None and (limits.upper < _MOST or limits.lower > _LEAST):
                limit = f'most {limits.upper}' if limits.upper < _MOST else f'least {limits.lower}'
                raise ExportError(
                    f'the code of the model makes axis {axis} of {name} at {limit}: somewhere it compares a size that'
                    ' follows from it'
                )


_LEAST, _MOST = 64, 1 << 20
"""Pixels. Networks of stride 32 ask whether their coarsest map has more than one cell."""


_KNOWN = 64
"""Elements of the largest tensor of which ``torch.export`` keeps the values; it does of one."""


def require(what: str) -> None:
    """Whether ``torch.export`` can be used here.

    Raises:
        UnsupportedError: torch is older than 2.9, or onnxscript is not installed.
    """
    if tuple(int(part) for part in torch.__version__.split('.')[:2]) < NEEDS:
        raise UnsupportedError(
            f'{what} needs torch {".".join(map(str, NEEDS))} or newer, and this is {torch.__version__}; the exporter'
            ' TorchScriptExporter does not'
        )
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UnsupportedError(f'{what} needs onnxscript: pip install onnxscript ({error})') from error


class _Positional(nn.Module):
    """A function of positional inputs whose names no signature tells: dynamic shapes go by their place."""

    def __init__(self, wrapper: nn.Module) -> None:
        super().__init__()
        self.wrapper = wrapper

    def forward(self, *args: Tensor) -> Any:
        return self.wrapper(*args)


def _free_axes(input_names: Sequence[str], dynamic_axes: Mapping[str, Mapping[int, str]]) -> Any:
    """The axes that are not fixed, as ``torch.export`` takes them for :class:`_Positional`; None without any."""
    axes = tuple(dict.fromkeys(dynamic_axes.get(name, ()), torch.export.Dim.DYNAMIC) for name in input_names)
    return (axes,) if any(axes) else None


@contextlib.contextmanager
def symbolic() -> Iterator[None]:
    """What runs inside sees tensors without values; a size of one image is not taken for one of all."""
    from torch._subclasses import fake_tensor
    from torch.fx.experimental import _config, proxy_tensor

    state = current_export() or ExportState()
    state.symbolic = True
    # what math.ceil asks a number for; as a rewriter of math.ceil itself it would fail PyTorch's own look at the graph
    Tensor.__ceil__ = lambda number: torch.ceil(number).long()
    limits = {module: module.CONSTANT_NUMEL_LIMIT for module in (fake_tensor, proxy_tensor)}
    for module in limits:  # tensors made of Python numbers, such as the sizes of levels, keep their values
        module.CONSTANT_NUMEL_LIMIT = _KNOWN
    try:
        with _config.patch(backed_size_oblivious=True):
            yield
    finally:
        for module, limit in limits.items():
            module.CONSTANT_NUMEL_LIMIT = limit
        del Tensor.__ceil__
        state.symbolic = False


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the exporter's own chatter: where it fails it prints the whole graph so far."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    sink = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
        warnings.simplefilter('ignore')
        try:
            yield
        finally:
            logging.disable(before)
