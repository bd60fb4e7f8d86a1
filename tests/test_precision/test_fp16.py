"""What group norm is made of stays in float32: squares of more than 256 are beyond a float16."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn

import mmdeploy_lite.ops  # noqa: F401  (before mmcv and what imports it)
from mmdeploy_lite.export import ExportState, TorchScriptExporter, exporting
from mmdeploy_lite.export.optimize import optimize
from mmdeploy_lite.precision import FP16
from mmdeploy_lite.precision.fp16 import deviation_nodes
from mmdeploy_lite.registry import REWRITERS
from mmdeploy_lite.rewriting import RewriteContext, build_rewriters


def exported(network: nn.Module, image: torch.Tensor) -> onnx.ModelProto:
    rewriters = build_rewriters({'norm': {'type': 'GroupNorm'}}, REWRITERS)
    with RewriteContext(rewriters), exporting(ExportState()):
        graph = TorchScriptExporter().export(network.eval(), (image,), ['image'], ['out'], {})
    return optimize(graph.model)


def run(model: onnx.ModelProto, image: torch.Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=['CPUExecutionProvider'])
    return session.run(None, {'image': image.numpy()})[0]


def test_group_norm_of_large_numbers() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 16, 3), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 8, 1))
    network.requires_grad_(False)
    image = torch.rand(1, 3, 20, 24) * 5000
    model = exported(network, image)
    exact = run(model, image)
    named = deviation_nodes(model.graph)
    kinds = [node.op_type for node in model.graph.node if node.name in named]
    assert sorted(kinds) == ['Add', 'Div', 'Mul', *['ReduceMean'] * 4, 'Sqrt', 'Sub']
    lowered, _ = FP16().convert(model)
    assert any(item.data_type == onnx.TensorProto.FLOAT16 for item in lowered.graph.initializer)
    # a CPU computes all of it in float32; other processors do not
    typed = {
        value.name: value.type.tensor_type.elem_type
        for value in onnx.shape_inference.infer_shapes(lowered).graph.value_info
    }
    kept = {output for node in lowered.graph.node if node.name in named for output in node.output}
    assert {typed[name] for name in kept} == {onnx.TensorProto.FLOAT}
    assert onnx.TensorProto.FLOAT16 in typed.values()
    answer = run(lowered, image)
    assert np.isfinite(answer).all() and np.abs(answer - exact).max() < 0.02 * np.abs(exact).max()


def test_nothing_else_is_a_deviation() -> None:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            features = self.conv(image)
            return features * features.mean((2, 3), keepdim=True).sigmoid() - features.sqrt()

    model = exported(Network().requires_grad_(False), torch.rand(1, 3, 8, 8))
    assert deviation_nodes(model.graph) == []
