"""Which part of a graph is the network, and that it can be taken out and put back."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from mmdeploy_lite.errors import UnsupportedError
from mmdeploy_lite.precision.calibration import Exposed
from mmdeploy_lite.precision.network import cut, find_networks, last_layers, put_back

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
node, value = helper.make_node, helper.make_tensor_value_info


def weight(name: str, *shape: int) -> onnx.TensorProto:
    generator = np.random.default_rng(len(name) + sum(shape))
    return numpy_helper.from_array((generator.normal(size=shape) / 3).astype(np.float32), name)


def constant(name: str, data, dtype=np.float32) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(data, dtype), name)


def detector() -> onnx.ModelProto:
    """Normalization, two convolutions, scores and boxes from two more, the best boxes, and a layer on these."""
    nodes = [
        node('Div', ['image', 'std'], ['normal']),
        node('Conv', ['normal', 'w1'], ['c1'], name='first', pads=[1, 1, 1, 1]),
        node('Relu', ['c1'], ['r1']),
        node('Conv', ['r1', 'w2'], ['c2'], name='second', pads=[1, 1, 1, 1]),
        node('Shape', ['c2'], ['size']),
        node('Conv', ['c2', 'w3'], ['score_map'], name='scores'),
        node('Conv', ['c2', 'w4'], ['box_map'], name='boxes'),
        node('Reshape', ['score_map', 'flat'], ['logits']),
        node('Sigmoid', ['logits'], ['probabilities']),
        node('TopK', ['probabilities', 'four'], ['best', 'places'], axis=2),
        node('Gather', ['rows', 'zero'], ['row']),
        node('MatMul', ['best', 'w5'], ['hidden'], name='on boxes'),
        node('Mul', ['hidden', 'w1_scale'], ['scaled']),
    ]
    weights = [
        constant('std', 50),
        weight('w1', 4, 3, 3, 3),
        weight('w2', 4, 4, 3, 3),
        weight('w3', 1, 4, 1, 1),
        weight('w4', 4, 4, 1, 1),
        weight('w5', 8, 8),
        constant('flat', [1, 1, -1], np.int64),
        constant('four', [8], np.int64),
        constant('rows', [3, 4], np.int64),
        constant('zero', 0, np.int64),
        constant('w1_scale', 3),
    ]
    outputs = [
        value('scaled', FLOAT, [1, 1, 8]),
        value('box_map', FLOAT, [1, 4, 'h', 'w']),
        value('size', INT64, [4]),
        value('row', INT64, []),
    ]
    graph = helper.make_graph(nodes, 'detector', [value('image', FLOAT, [1, 3, 'h', 'w'])], outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)


def looped() -> onnx.ModelProto:
    """A layer before a loop, and two in its body, which uses values and weights from around it."""
    body = helper.make_graph(
        [
            node('Gather', ['features', 'turn'], ['window'], axis=0),
            node('Unsqueeze', ['window', 'first_axis'], ['item']),
            node('Conv', ['item', 'w2'], ['inside'], name='inside', pads=[1, 1, 1, 1]),
            node('Relu', ['inside'], ['active']),
            node('Add', ['active', 'image_sum'], ['shifted']),
            node('Conv', ['shifted', 'w3'], ['result'], name='last inside'),
            node('Squeeze', ['result', 'first_axis'], ['squeezed']),
            node('Identity', ['going'], ['still']),
        ],
        'body',
        [value('turn', INT64, []), value('going', TensorProto.BOOL, [])],
        [value('still', TensorProto.BOOL, []), value('squeezed', FLOAT, None)],
        [weight('w3', 2, 4, 1, 1)],
    )
    nodes = [
        node('Conv', ['image', 'w1'], ['features'], name='before', pads=[1, 1, 1, 1]),
        node('ReduceMean', ['features'], ['image_sum'], keepdims=0),
        node('Shape', ['image'], ['count_1'], start=0, end=1),
        node('Squeeze', ['count_1'], ['count']),
        node('Loop', ['count', 'true'], ['out'], body=body),
    ]
    weights = [
        weight('w1', 4, 3, 3, 3),
        weight('w2', 4, 4, 3, 3),
        constant('first_axis', [0], np.int64),
        constant('true', True, bool),
    ]
    graph = helper.make_graph(
        nodes, 'looped', [value('image', FLOAT, ['n', 3, 6, 7])], [value('out', FLOAT, ['n', 2, 6, 7])], weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)


def run(model: onnx.ModelProto, image: np.ndarray) -> list[np.ndarray]:
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=['CPUExecutionProvider'])
    return session.run(None, {'image': image})


def image(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def test_the_network_is_what_lies_between_layers():
    model = detector()
    (network,) = find_networks(model)
    names = [item.name or item.op_type for item in network.nodes]
    # normalization, Sigmoid, TopK and what is decoded are not in it; a layer behind TopK is
    assert [name.rsplit('_', 1)[0] for name in names[:1]] == ['first']
    assert [item.op_type for item in network.nodes] == ['Conv', 'Relu', 'Conv', 'Shape', 'Conv', 'Conv', 'MatMul']
    assert network.inputs == ['normal', 'best']
    assert network.outputs == ['size', 'score_map', 'box_map', 'hidden']
    assert sorted(network.weights) == ['w1', 'w2', 'w3', 'w4', 'w5']
    assert [layer.name for layer in network.layers] == ['first', 'second', 'scores', 'boxes', 'on boxes']
    assert last_layers(network) == {'score_map', 'box_map', 'hidden'}


def test_the_last_layers_of_a_network_that_branches():
    """Forty residual blocks have 2 ** 40 ways through them."""
    nodes, name = [node('Conv', ['image', 'w1'], ['x0'], name='first', pads=[1, 1, 1, 1])], 'x0'
    for block in range(40):
        nodes += [
            node('Conv', [name, 'w2'], [f'branch{block}'], name=f'conv{block}', pads=[1, 1, 1, 1]),
            node('Add', [name, f'branch{block}'], [f'x{block + 1}']),
        ]
        name = f'x{block + 1}'
    nodes.append(node('Conv', [name, 'w3'], ['out'], name='last'))
    graph = helper.make_graph(
        nodes,
        'residual',
        [value('image', FLOAT, [1, 3, 4, 4])],
        [value('out', FLOAT, [1, 1, 4, 4])],
        [weight('w1', 4, 3, 3, 3), weight('w2', 4, 4, 3, 3), weight('w3', 1, 4, 1, 1)],
    )
    (network,) = find_networks(helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8))
    assert last_layers(network) == {'out'} and len(network.layers) == 42


def test_constants_count_as_weights_and_small_matrices_not_as_layers():
    model = detector()
    (w3,) = [item for item in model.graph.initializer if item.name == 'w3']
    model.graph.node.insert(0, node('Constant', [], ['w3'], value=w3))
    model.graph.initializer.remove(w3)
    (w5,) = [item for item in model.graph.initializer if item.name == 'w5']
    w5.CopyFrom(weight('w5', 8, 1))  # the average over the bins of a distribution
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 1
    expected = run(model, image(1, 3, 6, 7))
    (network,) = find_networks(model)
    assert 'w3' in network.weights and network.inputs == ['normal']
    for found, wanted in zip(run(model, image(1, 3, 6, 7)), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(('zeros', 'is_a_layer'), [(0, True), (3, True), (5, False)])
def test_matrices_that_interpolate_are_no_layers(zeros, is_a_layer):
    model = detector()
    (w5,) = [item for item in model.graph.initializer if item.name == 'w5']
    values = numpy_helper.to_array(w5).copy()
    values[:zeros] = 0  # of eight rows
    w5.CopyFrom(numpy_helper.from_array(values, 'w5'))
    (network,) = find_networks(model)
    assert ('on boxes' in [layer.name for layer in network.layers]) == is_a_layer


def test_what_is_in_branches_is_no_network():
    model = looped()
    last = model.graph.node[-1]
    for kind, depths in (('Loop', [0, 1]), ('If', [0])):
        last.op_type = kind
        assert [len(network.path) for network in find_networks(model)] == depths


def test_nothing_to_convert_is_refused():
    model = detector()
    for item in [item for item in model.graph.node if item.op_type in ('Conv', 'MatMul')]:
        item.op_type, item.domain = 'Strange', 'mine'
    with pytest.raises(UnsupportedError, match='no layers with weights'):
        find_networks(model)


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """A conversion that changes nothing, with names of its own that are in use elsewhere, and nodes in no order."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    own = {name for item in model.graph.node for name in item.output} - {value.name for value in model.graph.output}
    taken = iter(['logits', 'scaled', 'window', 'squeezed', 'count', *map(str, range(9))])
    new = {name: next(taken) for name in sorted(own)}
    for item in result.graph.node:
        item.input[:] = [new.get(name, name) for name in item.input]
        item.output[:] = [new.get(name, name) for name in item.output]
    nodes = list(result.graph.node)[::-1]
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    return result


@pytest.mark.parametrize('make, shape', [(detector, (1, 3, 6, 7)), (looped, (3, 3, 6, 7))])
def test_put_back_unchanged_it_answers_the_same(make, shape):
    model, given = make(), image(*shape)
    expected = run(model, given)
    count = len(model.graph.initializer)
    networks = find_networks(model)
    assert len(networks) == (2 if make is looped else 1)
    put_back(model, networks, [renamed(cut(model, network)) for network in networks])
    for found, wanted in zip(run(model, given), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)  # other operators are fused
    assert len(model.graph.initializer) <= count  # what the network had is gone from where it was


def test_a_change_to_the_network_arrives():
    model, given = looped(), image(2, 3, 6, 7)
    expected = run(model, given)
    networks = find_networks(model)
    parts = [cut(model, network) for network in networks]
    for part in parts:
        for item in part.graph.initializer:
            if item.name == 'w3':
                item.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(item), 'w3'))
    put_back(model, networks, parts)
    np.testing.assert_allclose(run(model, given)[0], 2 * expected[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('make, shape', [(detector, (1, 3, 6, 7)), (looped, (3, 3, 6, 7))])
def test_what_goes_into_the_network_of_each_turn(make, shape):
    """The cut network, fed with it, answers what the whole graph has there."""
    model, given = make(), image(*shape)
    expected = run(model, given)
    networks = find_networks(model)
    runs = Exposed(model, networks).run({'image': given})
    assert [len(turns) for turns in runs] == ([1, 3] if make is looped else [1])
    network, turns = networks[-1], runs[-1]
    session = onnxruntime.InferenceSession(cut(model, network).SerializeToString(), providers=['CPUExecutionProvider'])
    answers = [dict(zip(network.outputs, session.run(network.outputs, turn), strict=True)) for turn in turns]
    if make is looped:
        found = np.concatenate([answer['result'] for answer in answers])
        np.testing.assert_allclose(found, expected[0], rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_allclose(answers[0]['box_map'], expected[1], rtol=1e-5, atol=1e-5)
