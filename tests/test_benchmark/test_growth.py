"""Time as the work grows: every amount is run, and drawn."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from mmdeploy_lite.benchmark.growth import measure_growth, plot_growth


def test_rows_by_amount_and_a_picture(tmp_path):
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node('Relu', ['image'], ['y'])],
        'g',
        [value('image', TensorProto.FLOAT, ['n', 4])],
        [value('y', TensorProto.FLOAT, ['n', 4])],
    )
    path = tmp_path / 'model.onnx'
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8), str(path))
    steps = [(count, path, {'image': np.ones((count, 4), np.float32)}) for count in (1, 4)]
    growth = measure_growth('Relu', 'images', steps, threads=1, runs=2, per_image=True).to_dict()
    assert [row['amount'] for row in growth['rows']] == [1, 4] and growth['per'] == 'image'
    assert all(row['median_ms'] >= 0 and row['peak_mb'] > 0 for row in growth['rows'])
    plot_growth([growth, growth], tmp_path / 'growth.png')
    assert (tmp_path / 'growth.png').read_bytes().startswith(b'\x89PNG')
