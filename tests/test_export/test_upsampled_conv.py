"""Convolutions computed before upsampling: what PyTorch computes after it, and only where that saves work."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper

from mmdeploy_lite.export import upsampled_conv
from mmdeploy_lite.export.optimize import optimize
from mmdeploy_lite.export.peepholes import UNFOLDED, apply_rules
from mmdeploy_lite.export.upsampled_conv import Kernel, Part, gain
from mmdeploy_lite.export.weights import put_back, set_aside
from mmdeploy_lite.precision.network import find_networks
from mmdeploy_lite.testing.exporting import export
from mmdeploy_lite.testing.images import scene
from mmdeploy_lite.testing.tiny import tiny

MODES = ['half_pixel', 'pytorch_half_pixel', 'align_corners']
OUT = 16
SIZE = (32, 40)
SMALL = {(16, 20): 24, (8, 10): 32, (3, 3): 16, (1, 1): 16}  # (h, w): channels
LARGE = 8
FOLDED = {'Range', 'Shape', 'Abs', 'Max'}


def convolved(
    kernel=(3, 3),
    dilation=1,
    mode='half_pixel',
    bias=True,
    large=True,
    small=tuple(SMALL),
    batch=1,
    any_size=False,
    also=(),
    resize=None,
    **attributes,
):
    """Maps that are upsampled to one size, side by side and convolved.

    Args:
        kernel: its taps.
        dilation: along both axes.
        mode: of upsampling.
        bias: whether there is one.
        large: put one of the wanted size between them.
        small: sizes of the others.
        batch: images.
        any_size: leave the sizes open.
        also: values that the graph answers, too.
        resize: attributes of upsampling.
        attributes: of the convolution, for others than keep the size.
    """
    rng = np.random.default_rng(0)
    sizes = {'large': SIZE, **{f'small{index}': size for index, size in enumerate(small)}}
    channels = {'large': LARGE, **{f'small{index}': SMALL[size] for index, size in enumerate(small)}}
    extents = {name: (f'{name}_h', f'{name}_w') if any_size else size for name, size in sizes.items()}
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, channels[name], *extents[name]])
        for name in sizes
    ]
    constants = {'two': np.array([2]), 'four': np.array([4]), 'zero': np.array([0])}
    nodes = [
        helper.make_node('Shape', ['large'], ['shape']),
        helper.make_node('Slice', ['shape', 'two', 'four', 'zero'], ['wanted']),
    ]
    read = []
    for index, _ in enumerate(small):
        name = f'small{index}'
        constants[f'{name}_n'] = np.array([batch, channels[name]])
        nodes += [
            helper.make_node('Concat', [f'{name}_n', 'wanted'], [f'{name}_sizes'], axis=0),
            helper.make_node(
                'Resize',
                [name, '', '', f'{name}_sizes'],
                [f'{name}_large'],
                **{'mode': 'linear', 'coordinate_transformation_mode': mode, **(resize or {})},
            ),
        ]
        read.append(f'{name}_large')
    if large:
        read.insert(len(read) // 2, 'large')
    if len(read) > 1:
        nodes.append(helper.make_node('Concat', read, ['all'], axis=1))
    total = sum(channels[name.removesuffix('_large')] for name in read)
    shape = (OUT, total // attributes.get('group', 1), *kernel)
    constants['weight'] = rng.standard_normal(shape).astype(np.float32) / np.sqrt(np.prod(shape[1:])).astype(np.float32)
    constants['bias'] = rng.standard_normal(OUT).astype(np.float32)
    pads = [count // 2 * dilation for count in kernel] * 2
    nodes.append(
        helper.make_node(
            'Conv',
            ['all' if len(read) > 1 else read[0], 'weight', *(['bias'] if bias else [])],
            ['y'],
            **{'pads': pads, 'dilations': [dilation] * 2, **attributes},
        )
    )
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4) for name in ('y', *also)]
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, 'convolved', inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)


def images(model, seed=0, **sizes):
    rng = np.random.default_rng(seed)
    known = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in model.graph.input}
    return {
        name: rng.standard_normal((*shape[:2], *sizes.get(name, shape[2:]))).astype(np.float32)
        for name, shape in known.items()
    }


def run(model, feeds):
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=['CPUExecutionProvider'])
    return session.run(None, {value.name: feeds[value.name] for value in session.get_inputs()})[0]


def by_pytorch(model, feeds):
    """In float64, what the graph says before it is optimized."""
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    values = {name: torch.from_numpy(value).double() for name, value in feeds.items()}
    for node in model.graph.node:
        given = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        if node.op_type == 'Resize':
            values[node.output[0]] = F.interpolate(
                values[node.input[0]],
                size=tuple(feeds['large'].shape[2:]),
                mode='bilinear',
                align_corners=given['coordinate_transformation_mode'] == b'align_corners',
            )
        elif node.op_type == 'Concat' and node.output[0] == 'all':
            values['all'] = torch.cat([values[name] for name in node.input], dim=1)
        elif node.op_type == 'Conv':
            weight, bias = (torch.from_numpy(constants[name].astype(np.float64)) for name in ('weight', 'bias'))
            bias = bias if len(node.input) > 2 else None
            pads, dilations = given['pads'][:2], given['dilations']
            return F.conv2d(values[node.input[0]], weight, bias, padding=pads, dilation=dilations).numpy()
    raise AssertionError('no convolution')


@pytest.fixture
def always(monkeypatch):
    """As if all that it costs were nothing: maps are small here."""
    for name in ('RESIZED', 'MADE', 'LESS'):
        monkeypatch.setattr(upsampled_conv, name, 0)


def kinds(model):
    return {node.op_type for node in model.graph.node}


@pytest.mark.usefixtures('always')
@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize(('kernel', 'dilation'), [((1, 1), 1), ((3, 3), 1), ((3, 3), 4), ((1, 5), 1), ((3, 1), 2)])
@pytest.mark.parametrize('bias', [True, False])
@pytest.mark.parametrize('large', [True, False])
def test_fixed_sizes(mode, kernel, dilation, bias, large):
    model = convolved(kernel, dilation, mode, bias, large)
    made = optimize(model)
    assert not FOLDED & kinds(made)
    assert ('Resize' in kinds(made)) == (kernel == (1, 1))
    convs = [node for node in made.graph.node if node.op_type == 'Conv']
    assert len(convs) == len(SMALL) + large
    feeds = images(model)
    np.testing.assert_allclose(run(made, feeds), by_pytorch(model, feeds), atol=1e-5)


@pytest.mark.usefixtures('always')
@pytest.mark.parametrize('kernel', [(1, 1), (3, 3)])
def test_each_map_is_convolved_at_its_own_size(kernel):
    made = onnx.shape_inference.infer_shapes(optimize(convolved(kernel)))
    sizes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in made.graph.value_info}
    convs = [sizes[node.output[0]][2:] for node in made.graph.node if node.op_type == 'Conv']
    assert sorted(convs) == sorted(map(list, [SIZE, *SMALL]))


@pytest.mark.usefixtures('always')
@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('kernel', [(1, 1), (3, 3)])
@pytest.mark.parametrize('large', [True, False])
def test_any_size(mode, kernel, large):
    model = convolved(kernel, 2 if kernel == (3, 3) else 1, mode, large=large, any_size=True)
    made = optimize(model, usual={name: value.shape for name, value in images(convolved()).items()})
    assert ('Resize' in kinds(made)) == (kernel == (1, 1))
    assert sum(node.op_type == 'Conv' for node in made.graph.node) == len(SMALL) + large
    rng = np.random.default_rng(1)
    for seed in range(20):
        names = [value.name for value in model.graph.input]
        sizes = {name: tuple(rng.integers(1, 20, 2)) for name in names}  # larger ones are made smaller
        sizes['large'] = tuple(rng.integers(2, 30, 2))  # a single pixel is not the middle by pytorch_half_pixel
        feeds = images(model, seed, **sizes)
        np.testing.assert_allclose(run(made, feeds), by_pytorch(model, feeds), atol=1e-5)


@pytest.mark.usefixtures('always')
@pytest.mark.parametrize('kernel', [(1, 1), (3, 3)])
@pytest.mark.parametrize('size', [(1, 1), (1, 7), (2, 1)])
def test_single_pixels_as_onnx_runtime_upsamples_them(kernel, size):
    for mode in MODES:
        model = convolved(kernel, 1, mode, any_size=True)
        made = optimize(model, usual={name: value.shape for name, value in images(convolved()).items()})
        feeds = images(model, **{value.name: (3, 4) for value in model.graph.input} | {'large': size})
        np.testing.assert_allclose(run(made, feeds), run(model, feeds), atol=1e-5)


@pytest.mark.usefixtures('always')
@pytest.mark.parametrize('kernel', [(1, 1), (3, 3)])
def test_several_images(kernel):
    model = convolved(kernel, batch=3)
    made, feeds = optimize(model), images(model)
    assert sum(node.op_type == 'Conv' for node in made.graph.node) == len(SMALL) + 1
    np.testing.assert_allclose(run(made, feeds), by_pytorch(model, feeds), atol=1e-5)


@pytest.mark.usefixtures('always')
@pytest.mark.parametrize('kernel', [(1, 1), (3, 3)])
def test_a_single_map(kernel):
    """As UNet upsamples and convolves: there is nothing side by side."""
    model = convolved(kernel, large=False, small=[(8, 10)])
    made, feeds = optimize(model), images(model)
    ends = [node.op_type for node in made.graph.node][-1]
    assert ends == ('Resize' if kernel == (1, 1) else 'MatMul')
    np.testing.assert_allclose(run(made, feeds), by_pytorch(model, feeds), atol=1e-5)


@pytest.mark.usefixtures('always')
@pytest.mark.parametrize(
    'changes',
    [
        {'strides': [2, 2]},
        {'pads': [0, 0, 0, 0]},
        {'pads': [0, 0, 2, 2]},
        {'kernel': (2, 2), 'pads': [0, 0, 1, 1]},
        {'kernel': (2, 2), 'dilation': 2, 'pads': [1, 1, 1, 1]},
        {'group': 8},
        {'also': [f'small{index}_large' for index in range(len(SMALL))]},
        {'also': ['all']},
        {'resize': {'mode': 'cubic'}},
        {'resize': {'mode': 'nearest', 'coordinate_transformation_mode': 'asymmetric'}},
        {'any_size': True},  # what is usual was not said
    ],
    ids=str,
)
def test_others_are_left_alone(changes):
    made = optimize(convolved(**changes))
    assert sum(node.op_type == 'Conv' for node in made.graph.node) == 1
    assert sum(node.op_type == 'Resize' for node in made.graph.node) == len(SMALL)


@pytest.mark.usefixtures('always')
def test_a_map_that_was_only_measured_elsewhere():
    """Another rule reads its size from what gives it; this one sees the graph that the other left."""
    model = convolved()
    model.graph.node.append(helper.make_node('Shape', ['small1_large'], ['measured']))
    model.graph.output.append(helper.make_tensor_value_info('measured', TensorProto.INT64, [4]))
    made = apply_rules(model, rules=UNFOLDED)
    assert 'Resize' not in kinds(made)
    feeds = images(model)
    np.testing.assert_allclose(run(made, feeds), by_pytorch(model, feeds), atol=1e-5)


@pytest.mark.usefixtures('always')
def test_maps_below_one_another_are_left_alone():
    model = convolved(large=False, small=[(8, 10), (8, 10)])
    join = next(node for node in model.graph.node if node.output[0] == 'all')
    join.attribute[0].i = 2
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == 'weight')
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight)[:, : SMALL[8, 10]], 'weight'))
    made, feeds = optimize(model), images(model)
    assert sum(node.op_type == 'Conv' for node in made.graph.node) == 1
    np.testing.assert_array_equal(run(made, feeds), run(model, feeds))


@pytest.mark.usefixtures('always')
def test_what_is_read_elsewhere_is_left_alone_and_the_others_are_not():
    model = convolved(also=['small1_large'])
    made, feeds = optimize(model), images(model)
    assert sum(node.op_type == 'Resize' for node in made.graph.node) == 1
    assert sum(node.op_type == 'Conv' for node in made.graph.node) == len(SMALL)
    np.testing.assert_allclose(run(made, feeds), by_pytorch(model, feeds), atol=1e-5)


@pytest.mark.parametrize(
    ('out', 'channels', 'kernel', 'size', 'wanted', 'gains'),
    [
        (256, 256, 1, (64, 64), (128, 128), True),  # SegFormer's fusion
        (512, 512, 3, (64, 128), (128, 256), True),  # UPerNet's
        (512, 512, 3, (1, 1), (64, 128), True),  # DeepLab's pooled branch
        (64, 128, 1, (256, 512), (512, 1024), True),  # UNet
        (270, 36, 1, (64, 128), (128, 256), False),  # HRNet: many more channels would be upsampled
        (256, 256, 1, (128, 128), (128, 128), False),
        (256, 256, 1, (128, 128), (64, 64), False),
        (32, 32, 3, (64, 64), (128, 128), False),  # the matrices cost more
        (128, 128, 3, (32, 64), (64, 128), False),  # Semantic FPN: moving what the taps give does
    ],
)
def test_only_where_it_saves_work(out, channels, kernel, size, wanted, gains):
    weights = np.zeros((out, channels, kernel, kernel), dtype=np.float32)
    part = Part('x', 0, channels, None, size, wanted, fixed=True)
    assert (gain(Kernel(weights, '', (kernel, kernel), (1, 1)), part) > 0) == gains


def test_matrices_made_for_each_image_are_work_too():
    kernel = Kernel(np.zeros((16, 64, 3, 3), dtype=np.float32), '', (3, 3), (1, 1))
    part = Part('x', 0, 64, None, (8, 8), (32, 32), fixed=True)
    assert gain(kernel, part) > 0 > gain(kernel, part._replace(fixed=False))


@pytest.mark.usefixtures('always')
def test_weights_that_were_put_aside():
    model = convolved((3, 3))
    graph = onnx.ModelProto()
    graph.CopyFrom(model)
    weights = set_aside(graph)
    assert [tensor.name for tensor in weights] == ['weight']
    made = optimize(graph, weights)
    assert len(weights) > 1  # those made of it
    put_back(made, weights)
    assert 'weight' not in {tensor.name for tensor in made.graph.initializer}
    feeds = images(model)
    np.testing.assert_allclose(run(made, feeds), by_pytorch(model, feeds), atol=1e-5)


@pytest.mark.usefixtures('always')
def test_matrices_keep_their_precision():
    """What lowers the precision of layers takes the convolutions, and no matrix that upsamples."""
    made = optimize(convolved())
    layers = [node for network in find_networks(made) for node in network.layers]
    assert {node.op_type for node in layers} == {'Conv'} and len(layers) == len(SMALL) + 1


@pytest.mark.usefixtures('always')
@pytest.mark.parametrize('dynamic', [True, False])
def test_a_model_that_answers_as_before(dynamic, tmp_path):
    """PSPNet, whose bottleneck sees maps of 1, 2, 3 and 6 pixels."""
    model = tiny('PSPNet')
    exported = export(
        model.task, model.samples({'one': scene(1, 64, 96), 'two': scene(2, 64, 96)}), tmp_path, dynamic=dynamic
    )
    moved = [node for node in exported.graph.model.graph.node if node.op_type == 'MatMul' and 'bottleneck' in node.name]
    assert len(moved) == 5  # rows of each map, and columns of all
    sizes = [(64, 96), (80, 72)] if dynamic else [(64, 96)]
    samples = [model.samples({str(size): scene(3, *size)})[0] for size in sizes]
    assert exported.verify(samples).equal
