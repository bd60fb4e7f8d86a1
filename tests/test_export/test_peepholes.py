"""Each rule replaces what it says, keeps its hands off what only looks like it, and the answer stays the same."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from mmdeploy_lite.export.peepholes import UNFOLDED, apply_rules


def graph(nodes, inputs, outputs, **constants):
    made = helper.make_graph(
        nodes,
        'graph',
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, *kind) for name, kind in outputs.items()],
        [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)


def node(kind, *names, **attributes):
    *inputs, output = names
    return helper.make_node(kind, inputs, [output], **attributes)


def same_answer(before, after, seed=0):
    onnx.checker.check_model(after, full_check=True)
    generator = np.random.default_rng(seed)
    feeds = {
        value.name: generator.normal(size=[dim.dim_value or 5 for dim in value.type.tensor_type.shape.dim])
        for value in before.graph.input
    }
    feeds = {name: value.astype(np.float32) for name, value in feeds.items()}
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    answers = [
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=['CPUExecutionProvider']).run(
            None, feeds
        )
        for model in (before, after)
    ]
    for one, other in zip(*answers, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def kinds(model):
    return [item.op_type for item in model.graph.node]


@pytest.mark.parametrize(('shape', 'index', 'axis', 'squeezed'), [
    ([1, 5, 4], 0, 0, True),
    ([5, 1, 4], -1, 1, True),
    ([5, 4, 1], 0, -1, True),
    ([2, 5, 4], 0, 0, False),  # the first of two
    (['n', 5, 4], 0, 0, False),  # of how many is not known
    ([1, 5, 4], [0], 0, False),  # keeps the axis
])  # fmt: skip
def test_the_first_of_one(shape, index, axis, squeezed):
    before = graph(
        [node('Gather', 'x', 'index', 'y', axis=axis)], {'x': shape}, {'y': (TensorProto.FLOAT, None)}, index=index
    )
    before.graph.output[0].type.CopyFrom(onnx.shape_inference.infer_shapes(before).graph.output[0].type)
    after = apply_rules(before)
    assert kinds(after) == (['Squeeze'] if squeezed else ['Gather'])
    assert (after is before) is not squeezed
    same_answer(before, after)


def best_of_rows(axis=1, rows=(3, 0, 3), extra=(), shape=('n', 4)):
    outputs = {'y': (TensorProto.INT64, [len(rows)])}
    outputs |= {name: (TensorProto.INT64, [None]) for name in extra}
    nodes = [node('ArgMax', 'x', 'best', axis=axis, keepdims=0), node('Gather', 'best', 'rows', 'y')]
    return graph(nodes, {'x': list(shape)}, outputs, rows=np.array(rows))


@pytest.mark.parametrize('axis', [1, -1])
def test_the_best_of_chosen_rows(axis):
    before = best_of_rows(axis)
    after = apply_rules(before)
    assert kinds(after) == ['Gather', 'ArgMax']
    same_answer(before, after)


def test_the_best_of_all_rows_where_they_are_wanted_too():
    before = best_of_rows(extra=['best'])
    assert apply_rules(before) is before


def test_the_best_along_the_rows_is_left_alone():
    before = best_of_rows(axis=0, rows=(3, 0))
    assert apply_rules(before) is before


def test_rows_that_are_the_best_themselves():
    before = graph(
        [node('ArgMax', 'x', 'best', axis=1, keepdims=0, name='best'), node('Gather', 'best', 'best', 'y')],
        {'x': [5, 4]},
        {'y': (TensorProto.INT64, [5])},
    )
    assert apply_rules(before) is before


def best_of(parts=3, joined=2, axis=1, squeeze=None, keepdims=1, extra=()):
    shape = [1, 4, 3, 2]
    nodes = [node('Concat', *(f'x{i}' for i in range(parts)), 'whole', axis=joined)]
    source = 'whole'
    if squeeze is not None:
        nodes.append(node('Squeeze', 'whole', 'axes', 'smaller'))
        source = 'smaller'
    nodes.append(node('ArgMax', source, 'y', axis=axis, keepdims=keepdims))
    outputs = {'y': (TensorProto.INT64, None), **{name: (TensorProto.FLOAT, None) for name in extra}}
    before = graph(nodes, {f'x{i}': shape for i in range(parts)}, outputs, axes=np.array([squeeze or 0]))
    inferred = {value.name: value.type for value in onnx.shape_inference.infer_shapes(before).graph.output}
    for value in before.graph.output:
        value.type.CopyFrom(inferred[value.name])
    return before


@pytest.mark.parametrize('keepdims', [0, 1])
@pytest.mark.parametrize(
    ('joined', 'axis', 'squeeze'), [(2, 1, None), (3, 1, None), (-1, -3, None), (2, 0, 0), (1, 2, 0)]
)
def test_the_best_of_parts(joined, axis, squeeze, keepdims):
    before = best_of(3, joined, axis, squeeze, keepdims)
    after = apply_rules(before)
    found = kinds(after)
    assert found.count('ArgMax') == 3 and found[-1] == 'Concat' and found.count('Concat') == 1
    same_answer(before, after)


@pytest.mark.parametrize(('joined', 'axis', 'squeeze'), [(1, 1, None), (-3, 1, None), (2, 1, 0), (0, 1, None)])
def test_classes_in_parts_are_put_together_first(joined, axis, squeeze):
    before = best_of(3, joined, axis, squeeze)
    after = apply_rules(before)
    split = joined == 0  # parts of a batch
    assert kinds(after).count('ArgMax') == (3 if split else 1)
    same_answer(before, after)


def test_the_best_of_parts_of_parts():
    nodes = [
        node('Concat', 'x0', 'x1', 'left', axis=2),
        node('Concat', 'x2', 'x3', 'right', axis=2),
        node('Concat', 'left', 'right', 'whole', axis=3),
        node('ArgMax', 'whole', 'y', axis=1, keepdims=0),
    ]
    inputs = {f'x{index}': [1, 4, 3, 2] for index in range(4)}
    before = graph(nodes, inputs, {'y': (TensorProto.INT64, [1, 6, 4])})
    after = apply_rules(before)
    assert kinds(after).count('ArgMax') == 4 and kinds(after).count('Concat') == 3
    same_answer(before, after)


def test_a_whole_that_is_wanted_too_stays():
    before = best_of(extra=['whole'])
    after = apply_rules(before)
    assert kinds(after).count('Concat') == 2
    same_answer(before, after)


def test_names_that_a_tracer_gave_are_not_given_again():
    nodes = [
        node('Concat', 'x0', 'x1', 'whole', axis=1, name='/Concat'),
        node('ArgMax', 'whole', 'y', axis=0, name='/ArgMax'),
        node('ArgMax', 'x0', 'z', axis=0, name='/ArgMax_1'),
    ]
    outputs = {'y': (TensorProto.INT64, [1, 6]), 'z': (TensorProto.INT64, [1, 3])}
    before = graph(nodes, {'x0': [4, 3], 'x1': [4, 3]}, outputs)
    after = apply_rules(before)
    assert kinds(after).count('ArgMax') == 3
    same_answer(before, after)


@pytest.mark.parametrize('mode', ['half_pixel', 'pytorch_half_pixel', 'align_corners'])
@pytest.mark.parametrize(('size', 'wanted', 'gone'), [
    ([2, 3, 4, 5], [2, 3, 4, 5], True),
    ([2, 3, 1, 1], [2, 3, 1, 1], True),
    ([2, 3, 4, 5], [2, 3, 4, 6], False),
    ([2, 3, 4, 'w'], [2, 3, 4, 5], False),  # of how many is not known
])  # fmt: skip
def test_resized_to_the_same_size(mode, size, wanted, gone):
    resize = node('Resize', 'x', '', '', 'sizes', 'y', mode='linear', coordinate_transformation_mode=mode)
    before = graph([resize], {'x': size}, {'y': (TensorProto.FLOAT, wanted)}, sizes=wanted)
    after = apply_rules(before, rules=UNFOLDED)
    assert kinds(after) == ['Identity' if gone else 'Resize']
    same_answer(before, after)


@pytest.mark.parametrize('attributes', [{'mode': 'cubic'}, {'coordinate_transformation_mode': 'tf_crop_and_resize'}])
def test_others_of_the_same_size_are_left_alone(attributes):
    resize = node('Resize', 'x', '', '', 'sizes', 'y', **{'mode': 'linear', **attributes})
    before = graph([resize], {'x': [1, 2, 3, 4]}, {'y': (TensorProto.FLOAT, [1, 2, 3, 4])}, sizes=[1, 2, 3, 4])
    assert apply_rules(before, rules=UNFOLDED) is before


@pytest.mark.parametrize('mode', ['linear', 'nearest', 'cubic'])
@pytest.mark.parametrize(('ends', 'expected'), [
    ({}, [1, 2, 6, 7]), ({'start': 2}, [6, 7]), ({'start': -1}, [7]), ({'start': 1, 'end': -1}, [2, 6]),
])  # fmt: skip
def test_the_size_of_what_is_resized(mode, ends, expected):
    nodes = [
        node('Resize', 'x', '', '', 'sizes', 'large', mode=mode),
        node('Shape', 'large', 'y', **ends),
    ]
    outputs = {'y': (TensorProto.INT64, [len(expected)])}
    before = graph(nodes, {'x': [1, 2, 'h', 'w']}, outputs, sizes=[1, 2, 6, 7])
    after = apply_rules(before, rules=UNFOLDED)
    assert kinds(after) == ['Slice']
    same_answer(before, after)


def test_the_size_of_what_is_scaled_is_measured():
    nodes = [node('Resize', 'x', '', 'scales', 'large', mode='linear'), node('Shape', 'large', 'y')]
    scales = np.array([1, 1, 1.5, 1.5], dtype=np.float32)
    before = graph(nodes, {'x': [1, 2, 'h', 'w']}, {'y': (TensorProto.INT64, [4])}, scales=scales)
    assert apply_rules(before, rules=UNFOLDED) is before
