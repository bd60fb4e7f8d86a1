"""A file for any number of images: the graph for one image as the body of a ``Loop`` over the batch.

The libraries' post-processing goes through the images one by one, in Python; so does this, with all of the model. Each
image's answer is that of the file for one image, whatever its neighbours are, and no node of it is written again.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..errors import UnsupportedError
from .graphs import subgraphs

PADDING: dict[str, float] = {'dets': 0, 'labels': -1, 'masks': 0, 'roi_masks': 0}
"""Outputs with a row for each object, and what fills the rows of an image that has fewer than another."""


def over_images(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph for one image, made one for a batch.

    Args:
        model: all its inputs and outputs have a first axis of 1, the image; is not changed.

    Returns:
        A graph with the same inputs and outputs, whose first axis is ``batch``.

    Raises:
        UnsupportedError: the first axis of an output is not the image.
    """
    for value in [*model.graph.input, *model.graph.output]:
        if value.type.tensor_type.shape.dim[0].dim_value not in (0, 1):  # 0: not known
            raise UnsupportedError(
                f"the batch size cannot be dynamic: the first axis of '{value.name}' is not the image. Give"
                ' input.batch_size a number'
            )
    rows = [output for output in model.graph.output if output.name in PADDING]
    whole = [output for output in model.graph.output if output.name not in PADDING]
    body = _body(model.graph, rows, whole)
    begun, collected = ([f'{value.name}_{word}' for value in rows] for word in ('begun', 'collected'))
    nodes = [
        _constant('batch_axis', [0]),
        _constant('batch_always', True),
        helper.make_node('Shape', ['image'], ['batch_sizes'], start=0, end=1),
        helper.make_node('Squeeze', ['batch_sizes', 'batch_axis'], ['batch_count']),
        *(
            helper.make_node('SequenceEmpty', [], [name], dtype=value.type.tensor_type.elem_type)
            for name, value in zip(begun, rows, strict=True)
        ),
        helper.make_node(
            'Loop',
            ['batch_count', 'batch_always', *begun],
            [*collected, *(value.name for value in whole)],
            body=body,
        ),
    ]
    if rows:
        nodes += _places()
        for value, name in zip(rows, collected, strict=True):
            nodes += _padded(value, name)
    graph = helper.make_graph(nodes, model.graph.name, _batched(model.graph.input), _batched(model.graph.output))
    result = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    result.metadata_props.extend(model.metadata_props)
    return result


def _batched(values: Iterable[onnx.ValueInfoProto]) -> list[onnx.ValueInfoProto]:
    found = []
    for value in values:
        copy = onnx.ValueInfoProto()
        copy.CopyFrom(value)
        copy.type.tensor_type.shape.dim[0].dim_param = 'batch'
        found.append(copy)
    return found


def _constant(name: str, value: object) -> onnx.NodeProto:
    return helper.make_node('Constant', [], [name], value=numpy_helper.from_array(np.array(value)))


def _body(graph: onnx.GraphProto, rows: list[onnx.ValueInfoProto], whole: list[onnx.ValueInfoProto]) -> onnx.GraphProto:
    """The graph with an image of the batch as its input; rows go into sequences, the rest is stacked by the loop."""
    inner = {value.name: f'{value.name}_of_image' for value in [*graph.input, *graph.output]}
    nodes = [
        _constant('image_axis', [0]),
        helper.make_node('Unsqueeze', ['image_index', 'image_axis'], ['image_place']),
        *(
            helper.make_node('Gather', [value.name, 'image_place'], [inner[value.name]], axis=0)
            for value in graph.input
        ),
    ]
    for node in graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        _rename(copy, inner)
        nodes.append(copy)
    inputs = [
        helper.make_tensor_value_info('image_index', TensorProto.INT64, []),
        helper.make_tensor_value_info('image_going', TensorProto.BOOL, []),
    ]
    outputs = [helper.make_tensor_value_info('image_still', TensorProto.BOOL, [])]
    nodes.append(helper.make_node('Identity', ['image_going'], ['image_still']))
    for value in rows:
        name, kind = value.name, value.type.tensor_type.elem_type
        nodes.append(helper.make_node('Squeeze', [inner[name], 'image_axis'], [f'{name}_rows']))
        nodes.append(helper.make_node('SequenceInsert', [f'{name}_before', f'{name}_rows'], [f'{name}_after']))
        inputs.append(helper.make_tensor_sequence_value_info(f'{name}_before', kind, None))
        outputs.append(helper.make_tensor_sequence_value_info(f'{name}_after', kind, None))
    for value in whole:
        nodes.append(helper.make_node('Squeeze', [inner[value.name], 'image_axis'], [f'{value.name}_one']))
        one = onnx.ValueInfoProto(name=f'{value.name}_one')
        one.type.tensor_type.elem_type = value.type.tensor_type.elem_type
        outputs.append(one)
    body = helper.make_graph(nodes, 'image', inputs, outputs, initializer=graph.initializer)
    for tensor in body.initializer:  # an output may be a constant: the count of a model that always answers as many
        tensor.name = inner.get(tensor.name, tensor.name)
    return body


def _rename(node: onnx.NodeProto, new: dict[str, str]) -> None:
    for names in (node.input, node.output):
        names[:] = [new.get(name, name) for name in names]
    for sub in subgraphs(node):
        for inside in sub.node:
            _rename(inside, new)


def _places() -> list[onnx.NodeProto]:
    """(N, K) where each row of the padded outputs is found among the rows of all images; behind them is one more."""
    node = helper.make_node
    return [
        _constant('rows_zero', 0),
        _constant('rows_step', 1),
        _constant('rows_axis', [1]),
        node('CumSum', ['num_dets', 'rows_zero'], ['rows_offsets'], exclusive=1),
        node('ReduceMax', ['num_dets'], ['rows_most'], keepdims=0),
        node('ReduceSum', ['num_dets'], ['rows_total'], keepdims=0),
        node('Range', ['rows_zero', 'rows_most', 'rows_step'], ['rows_index']),
        node('Unsqueeze', ['rows_offsets', 'rows_axis'], ['rows_offsets_column']),
        node('Unsqueeze', ['num_dets', 'rows_axis'], ['rows_counts_column']),
        node('Add', ['rows_offsets_column', 'rows_index'], ['rows_found']),
        node('Less', ['rows_index', 'rows_counts_column'], ['rows_there']),
        node('Where', ['rows_there', 'rows_found', 'rows_total'], ['rows_places']),
    ]


def _padded(value: onnx.ValueInfoProto, collected: str) -> list[onnx.NodeProto]:
    name, kind = value.name, value.type.tensor_type.elem_type
    rank = len(value.type.tensor_type.shape.dim) - 1
    fill = np.array(PADDING[name], helper.tensor_dtype_to_np_dtype(kind))
    return [
        _constant(f'{name}_fill', fill),
        _constant(f'{name}_one_more', [0] * rank + [1] + [0] * (rank - 1)),
        helper.make_node('ConcatFromSequence', [collected], [f'{name}_joined'], axis=0),
        helper.make_node('Pad', [f'{name}_joined', f'{name}_one_more', f'{name}_fill'], [f'{name}_all']),
        helper.make_node('Gather', [f'{name}_all', 'rows_places'], [name], axis=0),
    ]
