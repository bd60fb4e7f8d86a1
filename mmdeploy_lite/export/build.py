"""From a task to a graph that passed the audit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import onnx
import torch
from torch import Tensor

from ..errors import AuditError, NothingDetectedError
from ..rewriting import FunctionRewriter, RewriteContext, of_exporter
from .allowed import AllowedLine, describe_place, unknown_places
from .audit import foreign_operators, invalid_model, lost_inputs, sizes_from_values
from .batch import over_images
from .explain import explain_frozen
from .optimize import finish, optimize, speed_up
from .scopes import ScopeRecorder, live_modules, lost_modules
from .tracing import ExportState, exporting
from .weights import put_back, set_aside


@dataclass
class BuiltGraph:
    """An audited graph.

    Attributes:
        model: optimized, without metadata.
        fired: per rewriter key, how often each call site came through it.
        never_fired: keys of rewriters that were in place and never called.
        skipped: per target that does not exist here, the reason.
        targets: per rewriter key, the dotted paths of what it replaces.
        plain: makes the same with its convolutions as they are written, where those of ``model`` go by Winograd's
            algorithm; once.
    """

    model: onnx.ModelProto
    fired: dict[str, dict[str, int]] = field(default_factory=dict)
    never_fired: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    targets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    plain: Callable[[], onnx.ModelProto] | None = None


def build_graph(
    task: Any,
    samples: list[Any],
    exporter: Any,
    rewriters: Mapping[str, FunctionRewriter],
    required: Collection[str] = (),
    dynamic: bool = False,
    allowed: Collection[AllowedLine] = (),
    clean: bool = True,
    winograd: bool = False,
) -> BuiltGraph:
    """Trace, audit and optimize.

    Args:
        task: a :class:`mmdeploy_lite.tasks.BaseTask`.
        samples: two images of one size; the first ones make up the batch that is traced, the last is the audit's
            other image.
        exporter: of the registry EXPORTERS.
        rewriters: by key.
        required: keys whose targets must exist.
        dynamic: keep height and width out of the graph.
        allowed: lines at which the tracer may warn.
        clean: optimize the graph.
        winograd: and compute its convolutions by Winograd's algorithm, where that is less work.

    Raises:
        NothingDetectedError: NMS was not recorded, because there was nothing to suppress.
        AuditError: the graph is not what was traced. All that is wrong is named.
        DeployError: see the exporter and the rewriters.
    """
    symbolic = getattr(exporter, 'symbolic', False)  # one of the user's own may not say
    rewriters = of_exporter(rewriters, symbolic)
    for rewriter in rewriters.values():
        rewriter.check(task.model)
        rewriter.prepare(task.model)
    wrapper = task.wrapper().eval()
    device = next(task.model.parameters()).device
    wrapper.to(device)
    batches = [samples[: task.batch_size], samples[-task.batch_size :]]
    inputs = [[torch.from_numpy(value).to(device) for value in task.feeds(batch).values()] for batch in batches]
    axes = {
        name: {i: dim for i, dim in enumerate(dims) if isinstance(dim, str)}
        for name, dims in task.output_shapes().items()
    }
    if dynamic:
        axes['image'] = {2: 'height', 3: 'width'}
    context = RewriteContext(rewriters, required)
    recorder = ScopeRecorder(wrapper)
    # an image that comes with its own img_shape may be padded: sizes then follow from that too
    fixed = task.sizes_follow_image and not dynamic and 'img_shape' not in task.input_names
    state = ExportState(
        dynamic=dynamic,
        fixed_sizes=fixed,
        pastes=task.pastes,
        wants_logits=task.wants_logits,
        allowed=tuple(allowed),
    )
    with context, exporting(state):
        with recorder:
            graph = exporter.export(wrapper, inputs[0], task.input_names, list(task.output_shapes()), axes)
        _guard(task, context)
        places = unknown_places(graph.warnings, allowed)
        problems = [
            f'a traced value became a Python value and is frozen in the graph: {describe_place(*place)}'
            for place in places
        ]

        def run(image: int) -> list[Tensor]:
            with torch.no_grad():
                answer = wrapper(*inputs[image])
            return list(answer) if isinstance(answer, tuple) else [answer]

        lost = lost_modules(recorder, graph.model, graph.modules)
        problems += [
            f"the module '{recorder.name(module)}' ({type(module).__name__}) ran while tracing and is not in the graph,"
            ' although the answer depends on it'
            for module in live_modules(wrapper, lost, run)
        ]
    problems += foreign_operators(graph.model)
    if task.sizes_follow_image and 'fixed_sizes' in rewriters:
        problems += sizes_from_values(graph.model, only_loops=not state.fixed_sizes)
    _keep_img_shape(graph.model, task)
    # of one class the labels are zeros, as many as there are boxes
    counts = ('num_dets', 'labels') if task.num_classes == 1 else ('num_dets',)
    problems += lost_inputs(graph.model, _needed(task), counts, fixed_counts=symbolic)
    _raise(problems, explain_frozen(places))
    weights = set_aside(graph.model)
    usual = {name: value.shape for name, value in zip(task.input_names, inputs[0], strict=True)}
    model = optimize(graph.model, weights, usual if dynamic else None) if clean else graph.model
    finish(model, {name: list(dims) for name, dims in task.output_shapes().items()})
    problems = lost_inputs(model, _needed(task), counts, fixed_counts=True)
    _raise(problems + foreign_operators(model) + invalid_model(model))
    plain = None
    if clean and winograd:
        faster = speed_up(model, weights, usual if dynamic else None)
        if faster is not model:
            _raise(foreign_operators(faster) + invalid_model(faster))
            model, plain = faster, partial(_whole, model, weights, task)
    model = _whole(model, weights, task)
    fired = {key: dict(sorted(sites.items())) for key, sites in context.fired.items() if sites}
    targets = {key: rewriter.targets for key, rewriter in rewriters.items()}
    return BuiltGraph(model, fired, context.never_fired(), context.skipped, targets, plain)


def _whole(model: onnx.ModelProto, weights: list[onnx.TensorProto], task: Any) -> onnx.ModelProto:
    """The graph with its weights, for as many images as the task asks for."""
    put_back(model, weights)
    if task.dynamic_batch:
        model = over_images(model)
        _raise(foreign_operators(model) + invalid_model(model))
    return model


def _needed(task: Any) -> list[str]:
    """Inputs that the answer must depend on. Not every model asks how much of the image is padding."""
    return [name for name in task.input_names if name != 'img_shape']


def _keep_img_shape(model: onnx.ModelProto, task: Any) -> None:
    """Where no box is clipped, the tracer drops the input; the file's contract has it."""
    names = [value.name for value in model.graph.input]
    if 'img_shape' in task.input_names and 'img_shape' not in names:
        shape = [task.batch_size, 2]
        value = onnx.helper.make_tensor_value_info('img_shape', onnx.TensorProto.INT64, shape)
        model.graph.input.insert(task.input_names.index('img_shape'), value)


def _raise(problems: list[str], advice: str = '') -> None:
    if problems:
        lines = ['the exported graph is not what was traced:', *(f'  - {line}' for line in problems)]
        raise AuditError('\n'.join([*lines, advice] if advice else lines))


_NMS_KEYS = {'batched_nms', 'nms', 'set_nms'}


def _guard(task: Any, context: RewriteContext) -> None:
    """Every NMS that the test config asks for must have been recorded, from a call site of its own."""
    wanted = task.nms_configs()
    sites = {site for key in _NMS_KEYS for site in context.fired.get(key, ())}
    if context.fired.keys() & _NMS_KEYS and len(sites) < len(wanted):
        raise NothingDetectedError(
            f'the test config asks for NMS in {", ".join(wanted)}, but only {len(sites)} of {len(wanted)} were recorded'
            f' ({", ".join(sorted(sites)) or "none"}): nothing reached the others while tracing. Export on an image'
            ' that shows objects the model finds, with a trained checkpoint, or lower score_thr in the test config'
        )
