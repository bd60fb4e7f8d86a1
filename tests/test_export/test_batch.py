"""Graphs of one image made graphs of many, on graphs of a few nodes."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from mmdeploy_lite.export.batch import over_images
from mmdeploy_lite.export.graphs import reads


def graph_of_one() -> onnx.ModelProto:
    """Three rows for every image, the count of which is a constant."""
    nodes = [
        helper.make_node('ReduceMean', ['image'], ['mean'], axes=[2, 3], keepdims=0),
        helper.make_node('Unsqueeze', ['mean', 'last'], ['labels_float']),
        helper.make_node('Squeeze', ['labels_float', 'last'], ['labels_flat']),
        helper.make_node('Cast', ['labels_flat'], ['labels'], to=TensorProto.INT64),
    ]
    return helper.make_model(
        helper.make_graph(
            nodes,
            'one',
            [helper.make_tensor_value_info('image', TensorProto.FLOAT, [1, 3, 'height', 'width'])],
            [
                helper.make_tensor_value_info('labels', TensorProto.INT64, [1, 3]),
                helper.make_tensor_value_info('num_dets', TensorProto.INT64, [1]),
            ],
            [
                numpy_helper.from_array(np.array([2]), 'last'),
                numpy_helper.from_array(np.array([3]), 'num_dets'),
            ],
        ),
        opset_imports=[helper.make_opsetid('', 17)],
        ir_version=8,
    )


def test_a_count_that_is_a_constant():
    one = graph_of_one()
    before = one.SerializeToString()
    many = over_images(one)
    assert one.SerializeToString() == before
    onnx.checker.check_model(many, full_check=True)
    session = onnxruntime.InferenceSession(many.SerializeToString())
    image = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    labels, counts = session.run(None, {'image': image})
    np.testing.assert_array_equal(labels, image.mean((2, 3)).astype(np.int64))
    assert counts.tolist() == [3, 3]


@pytest.mark.parametrize('rows', [True, False])
def test_no_constant_is_read_by_nobody(rows):
    """ONNX Runtime would say so whenever the file is loaded."""
    one = graph_of_one()
    if not rows:
        del one.graph.output[0]
    many = over_images(one)
    read = {value.name for value in many.graph.output}.union(*map(reads, many.graph.node))
    constants = [name for node in many.graph.node if node.op_type == 'Constant' for name in node.output]
    assert constants and read.issuperset(constants)
