"""Int8 files with branches and loops."""

from __future__ import annotations

import contextlib

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from mmdeploy_lite.export.graphs import all_nodes
from mmdeploy_lite.precision import INT8
from mmdeploy_lite.precision.int8 import keep_from_bodies
from mmdeploy_lite.testing.exporting import export
from mmdeploy_lite.testing.images import scene
from mmdeploy_lite.testing.tiny import tiny


@pytest.mark.parametrize(
    ('kind', 'more', 'attributes'),
    [
        ('Transpose', [], dict(perm=[0, 1, 3, 2])),
        ('Reshape', ['sizes'], {}),
        ('Squeeze', ['first'], {}),
        ('Unsqueeze', ['first'], {}),
        ('Slice', ['first', 'end', 'last'], {}),
        ('MaxPool', [], dict(kernel_shape=[2, 2])),
    ],
    ids=lambda value: value if isinstance(value, str) else '',
)
def test_what_a_body_reads_is_not_behind_a_dequantize_linear(kind, more, attributes):
    """ONNX Runtime aborts there, and pytest with it."""

    def body(name):
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node(name, ['moved'], [name])], name, [], [value])

    nodes = [
        helper.make_node('QuantizeLinear', ['x', 'scale', 'zero'], ['q']),
        helper.make_node('DequantizeLinear', ['q', 'scale', 'zero'], ['d']),
        helper.make_node(kind, ['d', *more], ['moved'], **attributes),
        helper.make_node('ReduceMax', ['moved'], ['most'], keepdims=0),
        helper.make_node('Less', ['most', 'limit'], ['small']),
        helper.make_node('If', ['small'], ['y'], then_branch=body('Neg'), else_branch=body('Abs')),
    ]
    constants = dict(scale=np.float32(0.5), zero=np.uint8(128), limit=np.float32(4))
    constants |= {name: np.array(value) for name, value in dict(sizes=[6], first=[0], end=[2], last=[3]).items()}
    graph = helper.make_graph(
        nodes,
        'graph',
        [helper.make_tensor_value_info('x', TensorProto.FLOAT, [1, 1, 2, 3])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ('y', 'moved')],
        [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)
    keep_from_bodies(model.graph)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=['CPUExecutionProvider'])
    for factor, sign in ((0.5, -1), (1.5, 1)):
        x = factor * np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)
        chosen, moved = session.run(None, {'x': x})
        assert moved.max() == (4 if kind == 'Slice' else 5) * factor
        np.testing.assert_array_equal(chosen, sign * moved)


@pytest.mark.parametrize('batch_size', [1, None])
def test_all_layers_of_a_detector_that_chooses(batch_size, tmp_path):
    """What follows from its last layers is read in branches; of any batch, in those of a loop's body."""
    model = tiny('RTMDet', {}, batch_size=batch_size)
    samples = model.samples({'one': scene(1, 64, 96), 'two': scene(2, 64, 96)})
    export(model.task, samples, tmp_path)
    for seed in range(2):
        cv2.imwrite(str(tmp_path / f'{seed}.png'), scene(seed, 64, 96))
    exact = onnx.load(next(tmp_path.glob('*.onnx')))
    assert 'If' in {node.op_type for node in all_nodes(exact.graph)}
    scheme = INT8(calibration=str(tmp_path), keep_last=False)
    steps = contextlib.nullcontext(lambda *_: None)
    made, _ = scheme.convert(exact, model.task, lambda sample: True, lambda total: steps)
    onnxruntime.InferenceSession(made.SerializeToString(), providers=['CPUExecutionProvider'])
