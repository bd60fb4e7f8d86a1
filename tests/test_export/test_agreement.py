"""The best class of what is upsampled, of a few cells computed and of the others known."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper

from mmdeploy_lite.export.agreement import best_of, upsampled
from mmdeploy_lite.export.facts import Facts, known_shapes
from mmdeploy_lite.export.optimize import optimize
from mmdeploy_lite.export.peepholes import UNFOLDED, apply_rules

SMALL, LARGE, CLASSES = (12, 20), (48, 80), 20
MODES = ['half_pixel', 'pytorch_half_pixel', 'align_corners']


def resized(
    *modes,
    then=(),
    batch=1,
    small=SMALL,
    large=(LARGE,),
    classes=CLASSES,
    outputs=None,
    scales=None,
    opset=17,
    given=False,
    **more,
):
    """Logits that are resized, once or twice, and what reads them; to ``large``, or to the size of an image and then to
    one that is an input, or ``given`` at once.
    """
    inputs = [helper.make_tensor_value_info('x', TensorProto.FLOAT, [batch, classes, *small])]
    constants, nodes, source = {'axes': np.array([0])}, [], 'x'
    for index, mode in enumerate(modes or ['half_pixel']):
        sizes, name = f'sizes{index}', f'large{index}'
        if large is None and (index or given):
            inputs.append(helper.make_tensor_value_info(sizes, TensorProto.INT64, [4]))
        elif large is None:
            inputs.append(helper.make_tensor_value_info('image', TensorProto.FLOAT, [1, CLASSES, None, None]))
            nodes.append(helper.make_node('Shape', ['image'], [sizes]))
        else:
            constants[sizes] = np.array([batch, classes, *large[index]])
        read = ['', 'scales'] if scales else ['', '', sizes]
        attributes = {'mode': 'linear', 'coordinate_transformation_mode': mode, **more}
        nodes.append(helper.make_node('Resize', [source, *read], [name], **attributes))
        source = name
    constants['scales'] = np.array([1, 1, *(scales or (1, 1))], dtype=np.float32)
    then = then or [helper.make_node('ArgMax', [source], ['y'], axis=1, keepdims=0)]
    graph = helper.make_graph(
        [*nodes, *then],
        'resized',
        inputs,
        [
            helper.make_tensor_value_info(name, kind, shape)
            for name, (kind, shape) in (outputs or {'y': (TensorProto.INT64, [batch, None, None])}).items()
        ],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid('', opset)], ir_version=8)


def session_of(model):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=['CPUExecutionProvider'])


def logits(seed, classes=CLASSES, size=SMALL, mixed=0.05):
    """Of which most neighbours have the same best class; with ``mixed=1`` nearly none."""
    generator = torch.Generator().manual_seed(seed)
    wide = F.interpolate(torch.randn(1, classes, 3, 3, generator=generator), size=size, mode='bilinear')
    return (1 - mixed) * wide + mixed * torch.randn(1, classes, *size, generator=generator)


def share_of_mixed(x):
    """How many of the cells between four pixels of the map have several best classes."""
    labels = x.argmax(1, keepdim=True).float()
    return float((F.max_pool2d(labels, 2, 1) != -F.max_pool2d(-labels, 2, 1)).float().mean())


def assert_best(answer, x, sizes, modes):
    """Each chosen class is the best in float64, or as good within rounding."""
    values = x.double()
    for size, mode in zip(sizes, modes, strict=True):
        values = F.interpolate(values, size=tuple(size), mode='bilinear', align_corners=mode == 'align_corners')
    values = values[0].numpy()
    assert answer.shape == (1, *values.shape[1:]) and answer.dtype == np.int64
    behind = values.max(axis=0) - np.take_along_axis(values, answer, 0)[0]
    assert behind.max() < 1e-5


@pytest.mark.parametrize('modes', [[mode] for mode in MODES] + [[mode] * 2 for mode in MODES], ids=str)
def test_any_size(modes):
    model = resized(*modes, small=(None, None), large=None)
    made = apply_rules(model, rules=UNFOLDED)
    onnx.checker.check_model(made, full_check=True)
    assert not {'Resize', 'If', 'Loop'} & {node.op_type for node in made.graph.node}
    session, before, rng = session_of(made), session_of(model), np.random.default_rng(0)
    for seed in range(60):
        size = tuple(int(extent) for extent in rng.integers(1, 14, 2))
        x, sizes = logits(seed, size=size, mixed=rng.choice([0.02, 0.3, 1.0])), []
        for index in range(len(modes)):
            least = 1 if index == 0 and len(modes) == 2 else 0.4  # made smaller, too, but not before the second time
            sizes.append([max(int(extent * rng.uniform(least, 9)), 1) for extent in (sizes or [size])[-1]])
        inputs = {'image': np.zeros((1, CLASSES, *sizes[0]), np.float32)}
        if len(modes) == 2:
            inputs['sizes1'] = np.array([1, CLASSES, *sizes[1]])
        (answer,) = session.run(None, {'x': x.numpy(), **inputs})
        if 'pytorch_half_pixel' in modes and 1 in np.ravel(sizes):  # a single pixel is the first, not so in PyTorch
            np.testing.assert_array_equal(answer, before.run(None, {'x': x.numpy(), **inputs})[0])
        else:
            assert_best(answer, x, sizes, modes)


@pytest.mark.parametrize('mixed', [0.0, 0.02, 1.0])
@pytest.mark.parametrize('large', [(48, 80), (36, 100), (47, 81), (96, 61)])
@pytest.mark.parametrize('mode', MODES)
def test_fixed_size_is_folded(mixed, large, mode):
    model = resized(mode, large=(large,))
    made = optimize(model)
    onnx.checker.check_model(made, full_check=True)
    kinds = [node.op_type for node in made.graph.node]
    assert 'Resize' not in kinds and not {'Range', 'Shape', 'Less', 'ReduceMax'} & {*kinds}
    # where all cells are alike, nothing is left out between them
    alike = mode != 'align_corners' and large in ((48, 80), (36, 100))
    assert kinds[-2:] == (['Slice', 'Unsqueeze'] if alike else ['Gather', 'Unsqueeze'])
    x = logits(1, mixed=mixed)
    assert (share_of_mixed(x) < 0.5) == (mixed < 1)
    assert_best(session_of(made).run(None, {'x': x.numpy()})[0], x, [large], [mode])


def test_nothing_between_classes_and_nothing_but():
    session = session_of(apply_rules(resized(), rules=UNFOLDED))
    for x in (torch.zeros(1, CLASSES, *SMALL), logits(2, mixed=1.0)):
        x[0, 7] += 100 * (share_of_mixed(x) == 0)
        assert share_of_mixed(x) in (0, 1)
        assert_best(session.run(None, {'x': x.numpy()})[0], x, [LARGE], ['half_pixel'])


def test_what_agrees_is_not_computed():
    """Weights of mixed cells alone are read: with wrong ones, these alone are wrong."""
    made = optimize(resized())
    product = next(node for node in made.graph.node if node.op_type == 'MatMul')
    before = next(node for node in made.graph.node if node.output[0] == product.input[0])
    before.input[1] = before.input[0]  # rows' weights for the columns'
    x = logits(3)
    answer = session_of(made).run(None, {'x': x.numpy()})[0][0]
    known = F.interpolate(x, size=LARGE, mode='bilinear').argmax(1)[0].numpy()
    wrong = (answer != known).reshape(12, 4, 20, 4).any(axis=(1, 3)).mean()
    assert 0 < wrong < 2 * share_of_mixed(x)


def test_made_smaller_in_between_is_an_error():
    session = session_of(apply_rules(resized(*MODES[:1] * 2, small=(None, None), large=None), rules=UNFOLDED))
    sizes = {'image': np.zeros((1, CLASSES, 4, 5), np.float32), 'sizes1': np.array([1, CLASSES, 24, 30])}
    with pytest.raises(Exception, match='Out of range'):
        session.run(None, {'x': logits(0).numpy(), **sizes})


def found(model, name='large0'):
    return upsampled(Facts(model, known_shapes(model)), name)


def test_attributes_of_opset_18_that_change_nothing():
    assert found(resized(opset=18, antialias=0, keep_aspect_ratio_policy='stretch')) is not None


@pytest.mark.parametrize(
    'changes',
    [
        {'mode': 'nearest'},
        {'mode': 'cubic'},
        {'coordinate_transformation_mode': 'asymmetric'},
        {'opset': 18, 'antialias': 1},
        {'opset': 18, 'keep_aspect_ratio_policy': 'not_larger'},
        {'opset': 18, 'axes': [0, 1, 2, 3]},
        {'scales': (4.0, 4.0)},  # coordinates follow from these, and not from the sizes
        {'classes': 15},
        {'classes': None},
        {'batch': 2},
        {'batch': None},
        {'small': (17, 20)},  # not three times as high
        {
            'small': (None, None),
            'large': None,
            'given': True,
        },  # of slide inference, say, whose map is as large as the image
    ],
    ids=str,
)
def test_any_other_is_left_alone(changes):
    model = resized(**changes | ({'large': None} if None in changes.values() else {}))
    assert found(model) is None
    assert apply_rules(model, rules=UNFOLDED) is model


def test_a_third_size_is_upsampled_before():
    model = resized(*MODES[:1] * 3, large=(LARGE, (144, 240), (50, 90)))
    source, resizes = found(model, 'large2')
    assert source == 'large0' and len(resizes) == 2


@pytest.mark.parametrize('keepdims', [0, 1])
@pytest.mark.parametrize('squeeze', [False, True])
@pytest.mark.parametrize('wanted', [False, True], ids=['', 'logits'])
def test_best_class(keepdims, squeeze, wanted):
    then = [helper.make_node('Squeeze', ['large0', 'axes'], ['map'])] * squeeze
    source, axis = ('map', 0) if squeeze else ('large0', 1)
    then = [*then, helper.make_node('ArgMax', [source], ['y'], axis=axis, keepdims=keepdims)]
    shape = [*[1] * (not squeeze), *[1] * keepdims, *LARGE]
    outputs = {'y': (TensorProto.INT64, shape)}
    if wanted:
        outputs['large0'] = (TensorProto.FLOAT, [1, CLASSES, *LARGE])
    before = resized(then=then, outputs=outputs)
    after = apply_rules(before, rules=UNFOLDED)
    onnx.checker.check_model(after, full_check=True)
    assert [node.op_type for node in after.graph.node].count('Resize') == wanted
    inputs = {'x': logits(5).numpy()}
    for one, other in zip(session_of(before).run(None, inputs), session_of(after).run(None, inputs), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)  # no two classes of random logits are as near as rounding


@pytest.mark.parametrize(('axis', 'last'), [(0, 0), (2, 0), (3, 0), (1, 1)])
def test_best_row_and_last_best_are_left_alone(axis, last):
    then = [helper.make_node('ArgMax', ['large0'], ['y'], axis=axis, keepdims=0, select_last_index=last)]
    shape = [size for place, size in enumerate([1, CLASSES, *LARGE]) if place != axis]
    before = resized(then=then, outputs={'y': (TensorProto.INT64, shape)})
    assert apply_rules(before, rules=UNFOLDED) is before


def test_rows_alone_are_left_alone():
    then = [
        helper.make_node('Squeeze', ['large0', 'axis'], ['lines']),
        helper.make_node('ArgMax', ['lines'], ['y'], axis=1),
    ]
    before = resized(then=then, small=(None, None), large=None)
    before.graph.initializer.append(numpy_helper.from_array(np.array([2]), 'axis'))
    assert apply_rules(before, rules=UNFOLDED) is before


def test_names_begin_as_they_should():
    model = resized()
    op, chosen = best_of(Facts(model, known_shapes(model)), 'large0', 'mine')
    names = [name for node in op.nodes for name in node.output] + [tensor.name for tensor in op.weights]
    assert chosen in names and len({*names}) == len(names) and all(name.startswith('mine_') for name in names)
