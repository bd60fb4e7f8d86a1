"""What of a file is the network."""

from __future__ import annotations

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from mmdeploy_lite.benchmark.parts import network_part


def graph_of(nodes, weights, outputs, inputs=('image',)):
    return helper.make_graph(
        nodes,
        'g',
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 32, 32]) for name in inputs],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )


def model_of(graph):
    return helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)


WEIGHTS = {
    'stem': np.ones((16, 3, 5, 5), np.float32),
    'head': np.ones((64, 16, 1, 1), np.float32),
    'small': np.eye(32, dtype=np.float32)[:, :4],
}


def test_ends_with_the_last_weights():
    nodes = [
        helper.make_node('Conv', ['image', 'stem'], ['features']),
        helper.make_node('Relu', ['features'], ['active']),
        helper.make_node('Conv', ['active', 'head'], ['logits']),
        helper.make_node('Sigmoid', ['logits'], ['scores']),
        helper.make_node('ReduceMax', ['scores'], ['best'], axes=[1]),
        helper.make_node('Add', ['best', 'active'], ['both']),
        helper.make_node('MatMul', ['image', 'small'], ['y']),  # of boxes
    ]
    model = model_of(graph_of(nodes, WEIGHTS, ['both', 'y']))
    before = model.SerializeToString()
    part = network_part(model)
    assert model.SerializeToString() == before
    assert [node.op_type for node in part.graph.node] == ['Conv', 'Relu', 'Conv']
    assert [value.name for value in part.graph.output] == ['active', 'logits']
    assert [tensor.name for tensor in part.graph.initializer] == ['stem', 'head']
    session = onnxruntime.InferenceSession(part.SerializeToString(), providers=['CPUExecutionProvider'])
    active, logits = session.run(None, {'image': np.ones((1, 3, 32, 32), np.float32)})
    assert active.shape == (1, 16, 28, 28) and logits.shape == (1, 64, 28, 28)


def test_a_matrix_that_upsamples_is_no_layer():
    columns = np.eye(32, dtype=np.float32).repeat(4, axis=1)  # 16 kB
    nodes = [
        helper.make_node('Conv', ['image', 'stem'], ['features']),
        helper.make_node('MatMul', ['image', 'columns'], ['large']),
        helper.make_node('MatMul', ['image', 'means'], ['smaller']),
        helper.make_node('MatMul', ['image', 'full'], ['mixed']),
    ]
    means = np.full((32, 128), 0.25, np.float32)
    weights = {**WEIGHTS, 'columns': columns, 'means': means, 'full': columns - 0.5}
    part = network_part(model_of(graph_of(nodes, weights, ['features', 'large', 'smaller', 'mixed'])))
    assert [node.output[0] for node in part.graph.node] == ['features', 'mixed']


def test_a_loop_with_weights_inside_is_network():
    body = helper.make_graph(
        [
            helper.make_node('Conv', ['image', 'stem'], ['made']),
            helper.make_node('Identity', ['cond_in'], ['cond_out']),
        ],
        'body',
        [
            helper.make_tensor_value_info('index', TensorProto.INT64, []),
            helper.make_tensor_value_info('cond_in', TensorProto.BOOL, []),
        ],
        [
            helper.make_tensor_value_info('cond_out', TensorProto.BOOL, []),
            helper.make_tensor_value_info('made', TensorProto.FLOAT, None),
        ],
    )
    nodes = [
        helper.make_node('Loop', ['count', ''], ['stacked'], body=body),
        helper.make_node('ArgMax', ['stacked'], ['y'], axis=2),
    ]
    weights = {'stem': WEIGHTS['stem'], 'count': np.array(2)}
    part = network_part(model_of(graph_of(nodes, weights, ['y'])))
    assert [node.op_type for node in part.graph.node] == ['Loop']
    assert {tensor.name for tensor in part.graph.initializer} == {'stem', 'count'}
    onnxruntime.InferenceSession(part.SerializeToString(), providers=['CPUExecutionProvider'])


def test_sums_of_weights_are_weights():
    nodes = [
        helper.make_node('Conv', ['image', 'stem'], ['features']),
        helper.make_node('Reshape', ['head', 'flat'], ['rows']),
        helper.make_node('MatMul', ['mixing', 'rows'], ['mixed']),
        helper.make_node('Reshape', ['mixed', 'dims'], ['kernel']),
        helper.make_node('Conv', ['features', 'kernel'], ['logits']),
        helper.make_node('Neg', ['small'], ['less']),
        helper.make_node('MatMul', ['image', 'less'], ['y']),  # of boxes
    ]
    made = {'flat': np.array([64, 16]), 'dims': np.array([4, 16, 1, 1]), 'mixing': np.ones((4, 64), np.float32)}
    part = network_part(model_of(graph_of(nodes, {**WEIGHTS, **made}, ['logits', 'y'])))
    assert [node.output[0] for node in part.graph.node] == ['features', 'rows', 'mixed', 'kernel', 'logits']
    session = onnxruntime.InferenceSession(part.SerializeToString(), providers=['CPUExecutionProvider'])
    assert session.run(None, {'image': np.ones((1, 3, 32, 32), np.float32)})[0].shape == (1, 4, 28, 28)
