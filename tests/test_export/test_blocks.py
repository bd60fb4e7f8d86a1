"""What is upsampled for an ArgMax is made in blocks, whose values are those of the Resize."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from mmdeploy_lite.export import blocks
from mmdeploy_lite.export.blocks import crowded, upsampled
from mmdeploy_lite.export.facts import Facts, known_shapes
from mmdeploy_lite.export.peepholes import apply_rules

SMALL, LARGE, CLASSES = (12, 20), (64, 96), 20


@pytest.mark.parametrize(
    ('pixels', 'channels', 'found'),
    [
        (512 * 1024, 150, True),
        (512 * 683, 150, True),  # 2048 bytes and a multiple of 4096: two places
        (512 * 1024, 9, True),
        (512 * 1024, 8, False),  # as many as there are ways
        (512 * 683, 16, False),
        (32 * 1023, 150, False),
        (375 * 500, 150, False),
    ],
)
def test_crowded(pixels, channels, found):
    assert crowded(pixels, channels) is found


def resized(
    then=(), batch=1, small=SMALL, large=LARGE, classes=CLASSES, outputs=None, scales=None, opset=17, **attributes
):
    """Logits that are resized, and what reads them."""
    sizes = ['', 'scales'] if scales else ['', '', 'sizes']
    nodes = [helper.make_node('Resize', ['x', *sizes], ['large'], **{'mode': 'linear', **attributes}), *then]
    constants = {'sizes': np.array([batch, classes, *large]), 'axes': np.array([0])}
    constants['scales'] = np.array([1, 1, *(scales or (1, 1))], dtype=np.float32)
    graph = helper.make_graph(
        nodes,
        'resized',
        [helper.make_tensor_value_info('x', TensorProto.FLOAT, [batch, classes, *small])],
        [
            helper.make_tensor_value_info(name, kind, shape)
            for name, (kind, shape) in (outputs or {'large': (TensorProto.FLOAT, [batch, classes, *large])}).items()
        ],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid('', opset)], ir_version=8)


def answers(model, seed=0):
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=['CPUExecutionProvider'])
    return session.run(None, {'x': values})


def joined(model, found):
    """A graph that puts the blocks together."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:]
    made.graph.node.extend(found.nodes)
    made.graph.initializer.extend(found.weights)
    strips = []
    for index, names in enumerate(found.names):
        made.graph.node.append(helper.make_node('Concat', names, [f'strip{index}'], axis=2))
        strips.append(f'strip{index}')
    made.graph.node.append(helper.make_node('Concat', strips, ['large'], axis=3))
    return made


@pytest.mark.parametrize('block', [1, 5000, 2**19])
@pytest.mark.parametrize('mode', ['half_pixel', 'align_corners', 'asymmetric', 'pytorch_half_pixel'])
def test_blocks_are_what_the_resize_makes(monkeypatch, block, mode):
    monkeypatch.setattr(blocks, 'BLOCK', block)
    model = resized(batch=2, coordinate_transformation_mode=mode)
    found = upsampled(Facts(model, known_shapes(model)), 'large', 'made')
    if block == 5000:
        assert len(found.names) > 2 and len(found.names[0]) > 2
    sizes = {tensor.name: tensor.dims for tensor in found.weights}
    assert all(sizes[f'made_rows{index}'][0] % 2 for index in range(len(found.names[0]) - 1))
    assert all(sizes[f'made_columns{index}'][1] % 2 for index in range(len(found.names) - 1))
    after = joined(model, found)
    onnx.checker.check_model(after, full_check=True)
    np.testing.assert_allclose(answers(after)[0], answers(model)[0], atol=2e-6)  # rounds in another order


def test_attributes_of_opset_18_that_change_nothing():
    model = resized(opset=18, antialias=0, keep_aspect_ratio_policy='stretch', exclude_outside=0)
    found = upsampled(Facts(model, known_shapes(model)), 'large', 'made')
    np.testing.assert_allclose(answers(joined(model, found))[0], answers(model)[0], atol=2e-6)


@pytest.mark.parametrize(
    'changes',
    [
        {'mode': 'nearest'},
        {'opset': 18, 'antialias': 1},
        {'mode': 'cubic'},
        {'scales': (5.4, 4.9)},  # coordinates follow from these, and not from the sizes
        {'large': (63, 95)},  # not crowded
        {'classes': 8},
        {'small': (33, 20)},  # not twice as high
        {'small': (32, 48)},  # large blocks of few classes, of which each element is many products
    ],
    ids=str,
)
def test_any_other_is_left_alone(changes):
    model = resized(**changes)
    assert upsampled(Facts(model, known_shapes(model)), 'large', 'made') is None


@pytest.mark.parametrize('keepdims', [0, 1])
@pytest.mark.parametrize('squeeze', [False, True])
@pytest.mark.parametrize('wanted', [False, True], ids=['', 'logits'])
def test_best_class_of_each_block(monkeypatch, keepdims, squeeze, wanted):
    monkeypatch.setattr(blocks, 'BLOCK', 5000)
    then = [helper.make_node('Squeeze', ['large', 'axes'], ['map'])] * squeeze
    source, axis = ('map', 0) if squeeze else ('large', 1)
    then = [*then, helper.make_node('ArgMax', [source], ['y'], axis=axis, keepdims=keepdims)]
    shape = [*[1] * (not squeeze), *[1] * keepdims, *LARGE]
    outputs = {'y': (TensorProto.INT64, shape)}
    if wanted:
        outputs['large'] = (TensorProto.FLOAT, [1, CLASSES, *LARGE])
    before = resized(then, outputs=outputs)
    after = apply_rules(before)
    onnx.checker.check_model(after, full_check=True)
    found = [node.op_type for node in after.graph.node]
    assert found.count('ArgMax') > 4 and found.count('Resize') == wanted
    for one, other in zip(answers(before), answers(after), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)  # no two classes of random logits are as near as rounding


@pytest.mark.parametrize('axis', [0, 2, 3])
def test_best_image_or_row_of_the_resized_is_left_alone(axis):
    then = [helper.make_node('ArgMax', ['large'], ['y'], axis=axis, keepdims=0)]
    shape = [size for place, size in enumerate([2, CLASSES, *LARGE]) if place != axis]
    before = resized(then, batch=2, outputs={'y': (TensorProto.INT64, shape)})
    assert apply_rules(before) is before
