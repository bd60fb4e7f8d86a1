"""Of a file that chooses between two ways, both are compared on every image."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from mmdeploy_lite.check.comparison import Comparison
from mmdeploy_lite.check.second_way import second_way
from mmdeploy_lite.check.verify import verify


def body(name, factor):
    nodes = [helper.make_node('Mul', ['image', factor], [name])]
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])])


def graph(second=3.0):
    """Three times the image, by two ways; the first is taken where the image begins with less than 10."""
    nodes = [
        helper.make_node('Gather', ['image', 'zero'], ['first']),
        helper.make_node('Less', ['first', 'limit'], ['enough']),
        helper.make_node(
            'If', ['enough'], ['out'], name='choice_0', then_branch=body('a', 'three'), else_branch=body('b', 'second')
        ),
    ]
    constants = dict(three=np.float32(3), second=np.float32(second), limit=np.float32(10), zero=np.int64(0))
    made = helper.make_graph(
        nodes,
        'graph',
        [helper.make_tensor_value_info('image', TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info('out', TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)


class Image:
    def __init__(self, *values):
        self.name, self.values = str(values), np.array(values, dtype=np.float32)
        self.image, self.shape = np.zeros((4, 5, 3)), (4, 5)


class Backend:
    """ONNX Runtime, for files that say nothing of themselves."""

    def load(self, path):
        self.session = onnxruntime.InferenceSession(str(path), providers=['CPUExecutionProvider'])
        self.names = [value.name for value in self.session.get_outputs()]
        return self

    def run(self, feeds):
        return dict(zip(self.names, self.session.run(None, feeds), strict=True))


class Task:
    """Answers three times the image."""

    kind, num_classes, batch_size, dynamic_batch = 'tensors', None, 1, False
    model = None

    def output_shapes(self):
        return {'out': (2,)}

    def feeds(self, samples):
        return {'image': samples[0].values}

    def reference(self, sample):
        return sample.values * 3, None

    def answer(self, outputs, index=0):
        return outputs['out']

    def compare(self, sample, reference, answer, tolerance, evidence):
        equal = np.allclose(reference, answer)
        return Comparison(kind='tensors', verdict='equal' if equal else 'unequal', reasons=[] if equal else ['no'])


@pytest.fixture
def compared(tmp_path, monkeypatch):
    from mmdeploy_lite.check import verify as module

    monkeypatch.setattr(module, 'exercised', lambda *args, **kwargs: [])
    monkeypatch.setattr(module, 'unprepared', lambda *args: [])

    def run(model, *samples):
        path = tmp_path / 'model.onnx'
        onnx.save(model, path)
        second = second_way(model, Backend())
        return verify(Task(), Backend().load(path), samples, None, False, second=second)

    return run


def test_both_ways_equal(compared):
    found = compared(graph(), Image(1, 2), Image(20, 3))
    assert found.equal and found.not_exercised == []


def test_a_wrong_longer_way_is_found_on_images_that_take_the_shorter(compared):
    found = compared(graph(second=4), Image(1, 2))
    assert not found.equal
    assert found.checks[0].comparison.reasons == ['its longer way, which other images take: no']


def test_a_shorter_way_that_no_image_took_is_said(compared):
    found = compared(graph(), Image(20, 3), Image(30, 4))
    assert found.equal
    assert found.not_exercised == ['the shorter way to an answer (enough): no image took it']


def test_a_file_with_one_way_has_no_second(compared):
    model = graph()
    model.graph.node[2].name = 'of the model itself'
    assert second_way(model, Backend()) is None
    assert compared(model, Image(1, 2), Image(20, 3)).equal
