"""Peak memory is that of the file, not of the process that asks."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mmdeploy_lite.benchmark.memory import peak_memory
from mmdeploy_lite.errors import BackendError


def test_of_a_file_with_40_mb_of_weights(tmp_path):
    weight = numpy_helper.from_array(np.ones((10, 1_000_000), np.float32), 'weight')
    nodes = [
        helper.make_node('MatMul', ['image', 'weight'], ['product']),
        helper.make_node('ReduceSum', ['product'], ['y']),
    ]
    graph = helper.make_graph(
        nodes,
        'g',
        [helper.make_tensor_value_info('image', TensorProto.FLOAT, [1, 10])],
        [helper.make_tensor_value_info('y', TensorProto.FLOAT, None)],
        [weight],
    )
    path = tmp_path / 'model.onnx'
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8), str(path))
    feeds = {'image': np.ones((1, 10), np.float32)}
    small = peak_memory(path, feeds, 1)
    held = np.ones(300_000_000, np.uint8)  # of this process
    assert 40 < small < 250
    assert abs(peak_memory(path, feeds, 1) - small) < 50 and held.any()


def test_of_a_file_that_cannot_run(tmp_path):
    (tmp_path / 'model.onnx').write_bytes(b'no graph')
    with pytest.raises(BackendError, match='could not be run by itself'):
        peak_memory(tmp_path / 'model.onnx', {'image': np.ones((1, 10), np.float32)}, 1)
