"""Convolutions by Winograd's algorithm: what PyTorch computes, and only where that saves work."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper

from mmdeploy_lite.export import winograd
from mmdeploy_lite.export.facts import known_shapes, with_sizes
from mmdeploy_lite.export.optimize import optimize, speed_up
from mmdeploy_lite.export.weights import put_back, set_aside
from mmdeploy_lite.export.winograd import Kernel, gain, transforms

SIZE = (13, 17)
CHANNELS = 5
OUT = 7
ROUNDING = 1e-5
"""Of results around 1: single ones differ by up to 2e-6."""


@pytest.fixture
def always(monkeypatch):
    """Whether it saves work or not."""
    monkeypatch.setattr(winograd, 'NODES', -1e15)


def chain(layers, shape=(1, CHANNELS, *SIZE), outputs=None, kind=TensorProto.FLOAT, opset=17):
    """Convolutions and what is between them.

    Args:
        layers: (reads, gives, operator or (channels of the result, attributes)) each.
        shape: of the image ``x``; names where it may be any.
        outputs: of the graph; None for the last.
        kind: of its elements.
        opset: 17 as the tracer's files have, 18 as those of torch.export.
    """
    rng = np.random.default_rng(0)
    channels, nodes, weights = {'x': shape[1]}, [], {}
    for place, (read, gives, what) in enumerate(layers):
        if isinstance(what, str):
            nodes.append(helper.make_node(what, [read], [gives], **({'alpha': 0.1} if what == 'LeakyRelu' else {})))
            channels[gives] = channels[read]
            continue
        out, attributes = what
        attributes = dict(attributes)
        kernel = attributes.pop('kernel', (3, 3))
        name = attributes.pop('weights', f'w{place}')
        inside = channels[read] // attributes.get('group', 1)
        weights.setdefault(name, rng.normal(0, (inside * np.prod(kernel)) ** -0.5, (out, inside, *kernel)))
        bias = [f'bias{place}'] if attributes.pop('bias', True) else []
        weights.update({each: rng.normal(size=out) for each in bias})
        attributes = {'pads': [1, 1, 1, 1], **attributes}
        nodes.append(helper.make_node('Conv', [read, name, *bias], [gives], f'conv{place}', **attributes))
        channels[gives] = out
    graph = helper.make_graph(
        nodes,
        'g',
        [helper.make_tensor_value_info('x', kind, shape)],
        [helper.make_empty_tensor_value_info(name) for name in outputs or [layers[-1][1]]],
        [
            numpy_helper.from_array(value.astype(helper.tensor_dtype_to_np_dtype(kind)), name)
            for name, value in weights.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', opset)], ir_version=8)
    for output in model.graph.output:
        output.type.tensor_type.elem_type = kind
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    del model.graph.value_info[:]
    return model


def one(**attributes):
    """A single convolution."""
    return [('x', 'y', (OUT, attributes))]


def run(model, image):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=['CPUExecutionProvider'])
    return session.run(None, {'x': image})


def by_pytorch(model, image):
    """All outputs, in float64."""
    weights = {
        tensor.name: torch.from_numpy(numpy_helper.to_array(tensor)).double() for tensor in model.graph.initializer
    }
    values = {'x': torch.from_numpy(image).double()}
    for node in model.graph.node:
        value = values[node.input[0]]
        if node.op_type == 'Conv':
            settings = {item.name: helper.get_attribute_value(item) for item in node.attribute}
            above, left, below, right = settings['pads']
            bias = weights[node.input[2]] if len(node.input) > 2 and node.input[2] else None
            value = F.pad(value, (left, right, above, below))
            value = F.conv2d(value, weights[node.input[1]], bias, dilation=settings.get('dilations', 1))
        else:
            value = F.relu(value) if node.op_type == 'Relu' else F.leaky_relu(value, 0.1)
        values[node.output[0]] = value
    return [values[output.name].numpy() for output in model.graph.output]


def noise(batch, height, width, channels=CHANNELS):
    return np.random.default_rng(height).normal(size=(batch, channels, height, width)).astype(np.float32)


def compare(model, made, *images):
    onnx.checker.check_model(made, full_check=True)
    for image in images:
        for expected, found in zip(by_pytorch(model, image), run(made, image), strict=True):
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, atol=ROUNDING)


def test_the_matrices_multiply_polynomials():
    rng = np.random.default_rng(0)
    rows, taps = rng.normal(size=6), rng.normal(size=3)
    matrices = transforms()
    made = matrices.result @ ((matrices.taps @ taps) * (matrices.rows @ rows))
    np.testing.assert_allclose(made, np.correlate(rows, taps), atol=1e-11)
    np.testing.assert_allclose(matrices.result @ matrices.constant, np.ones(4), atol=1e-11)
    assert np.count_nonzero(matrices.rows) == 22, 'zeros are zeros, whatever computed them'


ONES = [
    {},
    {'bias': False},
    {'pads': [0, 0, 0, 0]},
    {'pads': [2, 0, 1, 3]},
    {'pads': [0, 2, 3, 0]},
    {'dilations': [2, 2], 'pads': [2, 2, 2, 2]},
    {'dilations': [3, 1], 'pads': [3, 1, 0, 1]},
    {'dilations': [1, 4], 'pads': [1, 4, 1, 4]},
    {'dilations': [4, 2], 'pads': [4, 2, 8, 2], 'bias': False},
]


@pytest.mark.parametrize('batch', [1, 3])
@pytest.mark.parametrize('attributes', ONES, ids=str)
def test_one_of_fixed_size(attributes, batch, always):
    for height in (12, 13, 14, 15, 16):  # with and without rows to be cut off
        model = chain(one(**attributes), (batch, CHANNELS, height, 9))
        made = speed_up(model)
        assert made is not model
        compare(model, made, noise(batch, height, 9))


@pytest.mark.parametrize('opset', [17, 18])
@pytest.mark.parametrize('attributes', ONES, ids=str)
def test_one_of_any_size(attributes, opset, always):
    model = chain(one(**attributes), ('n', CHANNELS, 'h', 'w'), opset=opset)
    made = speed_up(model, usual={'x': (1, CHANNELS, 24, 32)})
    assert made is not model
    compare(model, made, noise(1, 24, 32), noise(2, 9, 10), noise(1, 16, 9), noise(3, 19, 41), noise(0, 24, 32))


def test_any_number_of_images_of_one_size(always):
    model = chain(one(), ('n', CHANNELS, *SIZE))
    compare(model, speed_up(model), noise(1, *SIZE), noise(3, *SIZE), noise(0, *SIZE))


@pytest.mark.parametrize('operator', ['Relu', 'LeakyRelu', 'Sigmoid'])
@pytest.mark.parametrize('any_size', [False, True])
def test_what_comes_behind(operator, any_size, always):
    shape = ('n', CHANNELS, 'h', 'w') if any_size else (1, CHANNELS, *SIZE)
    model = chain([*one(), ('y', 'z', operator)], shape)
    made = speed_up(model, usual={'x': (1, CHANNELS, *SIZE)})
    image = noise(1, *SIZE)
    np.testing.assert_allclose(run(made, image)[0], run(model, image)[0], atol=ROUNDING)
    kinds = [node.op_type for node in made.graph.node]
    # before rows are put in order it is a part of the product
    assert (kinds.index(operator) < kinds.index('Transpose')) == (operator != 'Sigmoid')
    if operator == 'Relu' and not any_size:
        assert kinds[kinds.index('Relu') - 1] == 'Gemm'


def test_what_is_read_before_the_activation_is_still_there(always):
    model = chain([*one(), ('y', 'z', 'Relu')], outputs=['y', 'z'])
    compare(model, speed_up(model), noise(1, *SIZE))


def test_two_of_one_map_share_its_sums_and_one_kernel_is_summed_once(always):
    towers = [
        ('x', 'a', (OUT, {'weights': 'first'})),
        ('x', 'b', (OUT, {'weights': 'second'})),
        ('b', 'b1', 'Relu'),
        ('a', 'a1', 'Relu'),
        ('a1', 'c', (OUT, {'weights': 'third', 'bias': False})),
        ('b1', 'd', (OUT, {'weights': 'third'})),
        # other sums, each
        ('x', 'e', (OUT, {'weights': 'second', 'pads': [0, 1, 1, 1]})),
        ('x', 'f', (OUT, {'weights': 'second', 'pads': [1, 1, 2, 1]})),
        ('x', 'g', (OUT, {'weights': 'second', 'pads': [2, 2, 2, 2], 'dilations': [2, 2]})),
    ]
    model = chain(towers, outputs=['c', 'd', 'e', 'f', 'g'])
    made = speed_up(model)
    compare(model, made, noise(1, *SIZE))
    grouped = [
        node for node in made.graph.node if node.op_type == 'Conv' and any(a.name == 'group' for a in node.attribute)
    ]
    assert len(grouped) == 6 * 6  # of x, a1, b1, and three more of x
    read = [node.input[0] for node in made.graph.node if node.op_type == 'Reshape']
    assert [read.count(name) for name in ('first', 'second', 'third')] == [1, 1, 1]


def test_the_file_keeps_the_weights_as_they_are(always):
    model = chain([('x', 'y', (64, {}))], (1, 64, *SIZE))
    made = speed_up(model)
    assert {tensor.name for tensor in model.graph.initializer} <= {tensor.name for tensor in made.graph.initializer}
    assert made.ByteSize() < model.ByteSize() + 20_000 < 1.2 * model.ByteSize()
    assert speed_up(model) == made, 'the same graph gives the same bytes'


def test_weights_that_were_put_aside(always):
    model = chain([('x', 'y', (64, {}))], (1, 64, *SIZE))
    whole = speed_up(model)
    aside = set_aside(model)
    assert aside
    made = speed_up(model, aside)
    put_back(made, aside)
    image = noise(1, *SIZE, channels=64)
    np.testing.assert_array_equal(run(made, image)[0], run(whole, image)[0])


def test_the_shape_is_known_as_before(always):
    model = chain(one())
    assert [dim.dim_value for dim in known_shapes(speed_up(model))['y']] == [1, OUT, *SIZE]
    model = chain(one(), ('n', CHANNELS, 'h', 'w'))
    made = with_sizes(speed_up(model, usual={'x': (1, CHANNELS, *SIZE)}), {'x': (2, CHANNELS, *SIZE)})
    assert run(made, noise(2, *SIZE))[0].shape == (2, OUT, *SIZE)


@pytest.mark.parametrize(
    'attributes',
    [
        {'kernel': (5, 5)},
        {'kernel': (1, 3), 'pads': [0, 1, 0, 1]},
        {'kernel': (3, 1), 'pads': [1, 0, 1, 0]},
        {'strides': [2, 2]},
        {'strides': [1, 2]},
        {'dilations': [2, 2], 'pads': [1, 1, 1, 1]},
        {'dilations': [2, 2], 'pads': [2, 2, 1, 2]},
        {'dilations': [2, 2], 'pads': [1, 2, 2, 2]},
    ],
    ids=str,
)
def test_others_are_left_alone(attributes, always):
    model = chain(one(**attributes))
    assert speed_up(model) is model


def test_pads_that_are_not_named_are_left_alone(always):
    model = chain(one())
    del model.graph.node[0].attribute[:]
    model.graph.node[0].attribute.append(helper.make_attribute('auto_pad', 'SAME_UPPER'))
    assert speed_up(model) is model


def test_an_empty_name_is_no_bias(always):
    model = chain(one(bias=False))
    model.graph.node[0].input.append('')
    made = speed_up(model)
    assert made is not model
    compare(model, made, noise(1, *SIZE))


def test_groups_and_other_numbers_are_left_alone(always):
    model = chain([('x', 'y', (6, {'group': 2}))], (1, 6, *SIZE))
    assert speed_up(model) is model
    model = chain(one(), kind=TensorProto.DOUBLE)
    assert speed_up(model) is model


def test_weights_that_are_computed_are_left_alone(always):
    model = chain(one())
    model.graph.node[0].input[1] = 'scaled'
    model.graph.node.insert(0, helper.make_node('Mul', ['w0', 'x_scale'], ['scaled']))
    model.graph.input.append(helper.make_tensor_value_info('x_scale', TensorProto.FLOAT, [1]))
    assert speed_up(model) is model


def test_where_no_size_is_known_it_is_left_alone(always):
    model = chain(one(), (1, CHANNELS, 'h', 'w'))
    assert speed_up(model) is model


HEAD = Kernel(256, 256, (1, 1), (1, 1, 1, 1))


@pytest.mark.parametrize(
    ('kernel', 'size', 'gains'),
    [
        (HEAD, (100, 168), True),
        (HEAD._replace(inside=2048, outside=512), (64, 128), True),
        (HEAD._replace(inside=512, outside=512), (25, 42), True),
        (HEAD._replace(inside=512, outside=512, dilations=(4, 4), pads=(4, 4, 4, 4)), (64, 128), True),
        (HEAD._replace(inside=64, outside=64), (200, 336), False),  # 0.93 when tried, on 2 cores
        (HEAD._replace(inside=128, outside=128), (64, 128), True),
        # rows that lie apart are put side by side first, which takes time as well
        (HEAD._replace(inside=128, outside=128, dilations=(2, 2), pads=(2, 2, 2, 2)), (64, 128), False),
        (HEAD._replace(outside=4), (100, 168), False),
        (HEAD._replace(inside=3), (800, 1344), False),
        (HEAD, (5, 7), False),  # eight rows are made where five are wanted
        (HEAD, (4, 4), False),  # too little of it
        # of taps so far apart most see zeros, and the last group of rows has most of the work
        (HEAD._replace(inside=2048, outside=512, dilations=(36, 36), pads=(36, 36, 36, 36)), (64, 128), False),
    ],
    ids=str,
)
def test_only_where_it_saves_work(kernel, size, gains):
    assert (gain(kernel, *size) > 0) == gains


def test_it_is_done_by_that():
    model = chain([('x', 'y', (128, {}))], (1, 128, 64, 64))
    made = speed_up(model)
    assert made is not model
    image = noise(1, 64, 64, channels=128)
    compare(model, made, image)
    few = chain([('x', 'y', (128, {}))], (1, 8, 64, 64))
    assert speed_up(few) is few


def test_rows_of_zeros_are_not_counted():
    near = gain(HEAD._replace(inside=512, outside=512, dilations=(2, 2), pads=(2, 2, 2, 2)), 64, 64)
    far = gain(HEAD._replace(inside=512, outside=512, dilations=(16, 16), pads=(16, 16, 16, 16)), 64, 64)
    # three taps see 64, 62 and 62 rows, or 64, 48 and 48
    assert near - far == 512 * 512 * 3 * 64 * 28


def test_after_the_graph_was_cleaned_up(always):
    layers = [*one(), ('y', 'z', 'Relu'), ('z', 'out', (OUT, {}))]
    model = chain(layers)
    made = speed_up(optimize(model))
    compare(model, made, noise(1, *SIZE))
