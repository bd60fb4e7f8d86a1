"""Is the graph what was traced? Each check returns what is wrong, in words; nothing is repaired here."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import onnx

from .graphs import all_nodes, subgraphs
from .large import is_large, save

STANDARD_DOMAINS = ('', 'ai.onnx')


def foreign_operators(model: onnx.ModelProto) -> list[str]:
    """Operators outside the default ONNX domain, which stock ONNX Runtime does not have; looks into subgraphs."""
    found = sorted(
        {f'{node.domain}::{node.op_type}' for node in all_nodes(model.graph) if node.domain not in STANDARD_DOMAINS}
    )
    return [
        f'{name} is not a standard ONNX operator; write a rewriter for the function it comes from' for name in found
    ]


def sizes_from_values(model: onnx.ModelProto, only_loops: bool = False) -> list[str]:
    """Operators whose results have as many elements as the image's content decides, where every size was taken for
    fixed.

    Args:
        model: the graph.
        only_loops: sizes are fixed in the bodies of loops, as those of the windows of slide inference are.
    """
    loops = [node for node in model.graph.node if node.op_type == 'Loop']
    graphs = [body for node in loops for body in subgraphs(node)] if only_loops else [model.graph]
    found = sorted({node.op_type for graph in graphs for node in all_nodes(graph)} & _SIZED_BY_VALUES)
    return [
        f'{name} gives as many elements as the image decides, and sizes are frozen in a graph of fixed height and'
        ' width, and in a window; drop the rewriter fixed_sizes (deploy.rewriters.fixed_sizes=None)'
        for name in found
    ]


_SIZED_BY_VALUES = {'NonZero', 'NonMaxSuppression', 'Unique', 'Compress'}


def lost_inputs(
    model: onnx.ModelProto,
    input_names: Iterable[str],
    counts: Iterable[str] = ('num_dets',),
    fixed_counts: bool = False,
) -> list[str]:
    """Outputs that do not depend on ``image``, and inputs that are gone or that no output depends on.

    A dependency through the shape alone does not count, but for outputs that are counts: an answer frozen for one
    image still has an image's shape.

    Args:
        model: the graph.
        input_names: what it must have.
        counts: outputs that are sizes of others.
        fixed_counts: a count may be a constant, the size of an answer that always has as many (DETR's queries): after
            optimization, and from an exporter to which a size that values decide is a symbol.
    """
    counts = tuple(counts)
    present = {value.name for value in model.graph.input}
    problems = [
        f"the graph has lost its input '{name}': it was bound as a constant, or everything it goes into was frozen"
        for name in input_names
        if name not in present
    ]
    producers = {output: node for node in model.graph.node for output in node.output}
    used: set[str] = set()
    for output in model.graph.output:
        reached = _reached_inputs(output.name, producers, present, through_shapes=output.name in counts)
        used |= reached
        if 'image' in present and 'image' not in reached and not (fixed_counts and output.name in counts):
            problems.append(f"the output '{output.name}' does not depend on the image: it was frozen while tracing")
    problems += [
        f"no output depends on the input '{name}'" for name in input_names if name in present and name not in used
    ]
    return problems


def _reached_inputs(
    output: str, producers: dict[str, onnx.NodeProto], inputs: set[str], through_shapes: bool
) -> set[str]:
    reached, seen, stack = set(), set(), [output]
    while stack:
        name = stack.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in inputs:
            reached.add(name)
        node = producers.get(name)
        if node is None or (node.op_type in ('Shape', 'Size') and not through_shapes):
            continue
        stack.extend(node.input)
        for body in subgraphs(node):
            stack.extend(name for inside in all_nodes(body) for name in inside.input)
    return reached


def invalid_model(model: onnx.ModelProto) -> list[str]:
    """What the ONNX checker finds, with full checks."""
    try:
        if is_large(model):
            with tempfile.TemporaryDirectory() as folder:
                save(model, Path(folder, 'model.onnx'))
                onnx.checker.check_model(str(Path(folder, 'model.onnx')), full_check=True)
        else:
            onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return [f'the ONNX checker rejects the graph: {str(error).splitlines()[0]}']
    return []
