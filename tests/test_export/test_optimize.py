"""The file that is written: clean, the same every time, and for stock ONNX Runtime."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper
from torch import nn

from mmdeploy_lite.errors import BackendError
from mmdeploy_lite.export.metadata import plain, write_metadata
from mmdeploy_lite.export.optimize import IR_VERSION, finish, optimize


def network(x):
    small = nn.functional.interpolate(x, scale_factor=0.5)
    large = nn.functional.interpolate(small, size=(12, 16))
    return (large + x).mean((2, 3)).topk(2)[0]


def answer(model, image):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=['CPUExecutionProvider'])
    return session.run(None, {session.get_inputs()[0].name: image.numpy()})[0]


@pytest.fixture
def traced(export, image):
    return export(network, image()).model


def test_answers_the_same_with_fewer_nodes(traced, image):
    before = traced.SerializeToString()
    cleaned = optimize(traced)
    assert traced.SerializeToString() == before  # the audit still needs it
    assert len(cleaned.graph.node) < len(traced.graph.node)
    np.testing.assert_array_equal(answer(cleaned, image(1)), answer(traced, image(1)))


def test_same_graph_gives_the_same_bytes(export, image):
    written = []
    for _ in range(2):
        model = optimize(export(network, image()).model)
        finish(model, {'out': ['n', 2]})
        write_metadata(model, dict(b=1, a=[1, 2]))
        written.append(model.SerializeToString(deterministic=True))
    assert written[0] == written[1]


def test_only_standard_operators_for_the_oldest_runtime(traced):
    traced.opset_import.append(helper.make_opsetid('com.microsoft', 1))
    cleaned = optimize(traced)
    finish(cleaned, {})
    assert [(entry.domain, entry.version) for entry in cleaned.opset_import] == [('', 17)]
    assert cleaned.ir_version == IR_VERSION <= 9
    assert {node.domain for node in cleaned.graph.node} <= {'', 'ai.onnx'}
    onnx.checker.check_model(cleaned, full_check=True)


def test_outputs_have_named_axes(export, image):
    model = export(lambda x: (x.mean((2, 3)), x), image(), outputs=('dets', 'map'), dynamic=True).model
    finish(model, {'dets': (1, 'num_dets'), 'map': (1, 3, 'map_height', 'map_width')})
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in model.graph.output
    }
    assert shapes == {'dets': [1, 'num_dets'], 'map': [1, 3, 'map_height', 'map_width']}
    assert not model.graph.value_info


def test_output_that_is_not_named_keeps_its_shape(export, image):
    model = export(lambda x: x.mean((2, 3)), image()).model
    before = model.graph.output[0].SerializeToString()
    finish(model, {'other': (1,)})
    assert model.graph.output[0].SerializeToString() == before


def test_says_nothing_of_the_machine(traced):
    for node in traced.graph.node:
        node.doc_string = '/home/somebody/project/model.py(12): forward'
    traced.doc_string = traced.graph.name = '/home/somebody'
    finish(traced, {})
    assert b'somebody' not in traced.SerializeToString()


def test_graph_that_does_not_load(traced):
    traced.graph.node[-1].input[0] = 'gone'
    with pytest.raises(BackendError, match='ONNX Runtime cannot load the exported graph: ') as caught:
        optimize(traced)
    assert '\n' not in str(caught.value)


def test_metadata():
    model = helper.make_model(helper.make_graph([], 'g', [], []))
    write_metadata(model, dict(zeta=1, classes=['é', 'b']))
    write_metadata(model, dict(zeta=2, classes=['é', 'b']))
    (entry,) = model.metadata_props
    assert json.loads(entry.value) == dict(zeta=2, classes=['é', 'b'], version=json.loads(entry.value)['version'])
    assert list(json.loads(entry.value)) == sorted(json.loads(entry.value))


def test_plain():
    class Step:
        pass

    value = dict(a=(1, 2.5, None, True), b=[dict(c='x')], type=Step, size=np.array([1, 2]), number=np.float32(0.5))
    expected = dict(a=[1, 2.5, None, True], b=[dict(c='x')], type='Step', size=[1, 2], number=0.5)
    assert plain(value) == expected
    assert json.loads(json.dumps(plain({1: torch.tensor([1.0])}))) == {'1': [1.0]}
