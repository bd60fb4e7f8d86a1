"""Int8 files with branches."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from mmdeploy_lite.precision.int8 import _keep_from_branches


def test_what_a_branch_reads_is_not_behind_a_dequantize_linear():
    """ONNX Runtime moves it past a Transpose to whoever reads that, and aborts where an ``If`` does."""

    def body(kind):
        value = helper.make_tensor_value_info(kind, TensorProto.FLOAT, [3, 2])
        return helper.make_graph([helper.make_node(kind, ['turned'], [kind])], kind, [], [value])

    nodes = [
        helper.make_node('QuantizeLinear', ['x', 'scale', 'zero'], ['q']),
        helper.make_node('DequantizeLinear', ['q', 'scale', 'zero'], ['d']),
        helper.make_node('Transpose', ['d'], ['turned']),
        helper.make_node('ReduceMax', ['turned'], ['most'], keepdims=0),
        helper.make_node('Less', ['most', 'limit'], ['small']),
        helper.make_node('If', ['small'], ['y'], then_branch=body('Neg'), else_branch=body('Abs')),
    ]
    constants = dict(scale=np.float32(0.5), zero=np.uint8(128), limit=np.float32(4))
    graph = helper.make_graph(
        nodes,
        'graph',
        [helper.make_tensor_value_info('x', TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info('y', TensorProto.FLOAT, [3, 2])],
        [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)
    _keep_from_branches(model.graph)
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node].count('Max') == 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=['CPUExecutionProvider'])
    for x in (np.arange(6, dtype=np.float32).reshape(2, 3) / 2, np.arange(6, dtype=np.float32).reshape(2, 3)):
        np.testing.assert_array_equal(session.run(None, {'x': x})[0], x.T if x.max() >= 4 else -x.T)
