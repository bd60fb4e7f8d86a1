"""Weights put aside while a graph is worked on."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from mmdeploy_lite.export.optimize import optimize
from mmdeploy_lite.export.weights import put_back, set_aside


class Network(nn.Module):
    """Weights of every kind: to be put aside, to be folded, shared, small, and looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 5)
        self.scaled = nn.Conv2d(64, 64, 3)
        self.up = nn.ConvTranspose2d(64, 16, 4)
        self.shared = nn.Linear(16, 400)
        self.table = nn.Parameter(torch.rand(400, 16))
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.up(self.scaled(self.conv(x).relu()) * 1.5).mean((2, 3))
        y = self.shared(x)
        return y + self.table[y.argmax(dim=1)] @ self.shared.weight.t()


@pytest.fixture(scope='module')
def model(tmp_path_factory: pytest.TempPathFactory) -> onnx.ModelProto:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp('weights') / 'model.onnx'
    options = {'dynamo': False} if 'dynamo' in torch.onnx.export.__code__.co_varnames else {}
    torch.onnx.export(
        Network().eval(), (torch.rand(2, 3, 16, 16),), str(path), input_names=['x'], opset_version=17, **options
    )
    return onnx.load(str(path))


def run(model: onnx.ModelProto) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=['CPUExecutionProvider'])
    return session.run(None, {'x': np.random.default_rng(0).random((2, 3, 16, 16), np.float32)})[0]


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    result = onnx.ModelProto()
    result.CopyFrom(model)
    return result


def test_put_back_is_what_it_was(model: onnx.ModelProto) -> None:
    worked_on = copied(model)
    weights = set_aside(worked_on)
    names = {tensor.name for tensor in weights}
    assert 'conv.weight' in names and 'up.weight' in names
    # 1.5 is folded into it, and a table is no weight
    assert not names & {'scaled.weight', 'table', 'conv.bias'}
    assert len(worked_on.SerializeToString()) + sum(len(tensor.raw_data) for tensor in weights) < 1.02 * len(
        model.SerializeToString()
    )
    onnx.checker.check_model(worked_on, full_check=True)
    put_back(worked_on, weights)
    assert [value.name for value in worked_on.graph.input] == ['x']
    assert sorted(t.name for t in worked_on.graph.initializer) == sorted(t.name for t in model.graph.initializer)
    np.testing.assert_array_equal(run(worked_on), run(model))


def test_optimized_without_them_is_as_small_and_answers_the_same(model: onnx.ModelProto) -> None:
    worked_on = copied(model)
    weights = set_aside(worked_on)
    optimized = optimize(worked_on)
    put_back(optimized, weights)
    assert len(optimized.graph.node) == len(optimize(model).graph.node)
    assert 'Mul' not in [node.op_type for node in optimized.graph.node]
    np.testing.assert_allclose(run(optimized), run(model), rtol=1e-5, atol=1e-5)


def test_what_is_not_read_any_more_stays_away(model: onnx.ModelProto) -> None:
    worked_on = copied(model)
    weights = set_aside(worked_on)
    del worked_on.graph.node[:]
    put_back(worked_on, weights)
    assert not {tensor.name for tensor in weights} & {tensor.name for tensor in worked_on.graph.initializer}
