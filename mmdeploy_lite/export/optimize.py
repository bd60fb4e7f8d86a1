"""Graph clean-up: constants folded, shape arithmetic of static graphs gone, duplicates merged.

Done by ONNX Runtime's own offline optimization at the basic level, whose result has standard operators alone. Of the
well-kept libraries that do this it took 2 s where onnxscript's optimizer took 14 s and onnxslim 35 s (Faster R-CNN
R50, dynamic sizes, 1,406 nodes), for about as few nodes (786, 805, 749).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import onnx

from ..errors import BackendError
from .choices import sink_into_branches
from .facts import known_shapes, with_sizes
from .large import is_large, save
from .loops import distinct_names
from .peepholes import UNFOLDED, Rule, apply_rules, by_winograd, drop_unread
from .slices import drop_whole_slices
from .weights import set_aside

# torch's exporter writes 8 for opset 17; ONNX Runtime 1.17, the oldest supported, reads up to 9
IR_VERSION = 8


def optimize(
    model: onnx.ModelProto,
    aside: list[onnx.TensorProto] | None = None,
    usual: Mapping[str, Sequence[int]] | None = None,
    unfolded: Sequence[Rule] = tuple(UNFOLDED),
) -> onnx.ModelProto:
    """Clean a graph up without changing what it answers; the check runs on the result.

    Args:
        model: is not changed.
        aside: its weights that were put aside, see :func:`~mmdeploy_lite.export.weights.set_aside`. Those that are made
            of them are put there as well, in place.
        usual: per input, the sizes of a usual image, if any size will do. What is fast for them is chosen.
        unfolded: rules that are applied last.

    Raises:
        BackendError: ONNX Runtime cannot load the graph.
    """
    folded = _fold(model)
    if not is_large(folded):  # shape inference takes no more than 2 GB
        shapes = known_shapes(folded)
        smaller = drop_whole_slices(folded, shapes)
        if smaller is not folded:
            folded = _fold(smaller)
            shapes = known_shapes(folded)
        folded = apply_rules(folded, shapes)
        made = apply_rules(folded, shapes, unfolded, _shapes_of(folded, usual), aside or ())
        if made is not folded:
            if aside is not None:
                aside += set_aside(made)
            folded = _fold(made)
    sink_into_branches(folded)
    return folded


def speed_up(
    model: onnx.ModelProto,
    aside: Sequence[onnx.TensorProto] = (),
    usual: Mapping[str, Sequence[int]] | None = None,
) -> onnx.ModelProto:
    """A graph that is clean, with what is faster on a CPU: not folded afterwards, so that the weights stay as they are.

    Args:
        model: is not changed.
        aside: see :func:`optimize`.
        usual: see :func:`optimize`.

    Returns:
        ``model`` itself where there is nothing to be gained.
    """
    if is_large(model):
        return model
    return apply_rules(model, rules=[by_winograd], usual=_shapes_of(model, usual), aside=aside)


def _shapes_of(model: onnx.ModelProto, usual: Mapping[str, Sequence[int]] | None) -> Callable[[], Any] | None:
    """What gives the shapes for a usual image, computed where somebody asks for them; None without such an image."""
    return cache(lambda: known_shapes(_fold(with_sizes(model, usual)))) if usual else None


def _fold(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, 'traced.onnx'), Path(folder, 'optimized.onnx')
        save(model, source)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(target)
        if is_large(model):
            options.add_session_config_entry('session.optimized_model_external_initializers_file_name', 'weights')
            options.add_session_config_entry('session.optimized_model_external_initializers_min_size_in_bytes', '1024')
        options.log_severity_level = 3
        try:
            onnxruntime.InferenceSession(str(source), options, providers=['CPUExecutionProvider'])
        except Exception as error:  # onnxruntime's errors have no common base that older releases export
            words = str(error).splitlines()[0].replace(f'Load model from {source} failed:', '')  # nobody's path
            raise BackendError(f'ONNX Runtime cannot load the exported graph: {words}') from error
        optimized = onnx.load(str(target))
    distinct_names(optimized.graph)
    return drop_unread(optimized)  # of a choice that is known, it leaves the other way, and would run it


def finish(model: onnx.ModelProto, output_shapes: Mapping[str, Sequence[int | str]]) -> None:
    """Name the axes of the outputs, and drop what says nothing about the model, in place.

    Args:
        model: the graph to be written.
        output_shapes: per output, its sizes: numbers where fixed, names where not.
    """
    for output in model.graph.output:
        dims = output_shapes.get(output.name)
        if dims is None:
            continue
        shape = output.type.tensor_type.shape
        del shape.dim[:]
        for dim in dims:
            entry = shape.dim.add()
            if isinstance(dim, int):
                entry.dim_value = dim
            else:
                entry.dim_param = dim
    del model.graph.value_info[:]  # sizes guessed while exporting; wrong ones for another image size
    for node in model.graph.node:
        node.doc_string = ''
    used = {node.domain for node in model.graph.node} | {''}
    imports = [entry for entry in model.opset_import if entry.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(imports)
    model.doc_string = ''
    model.graph.name = 'mmdeploy_lite'
    model.ir_version = IR_VERSION
