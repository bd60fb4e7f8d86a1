"""Padding that differs from side to side: PyTorch, ONNX and OpenVINO each write it down in another order.

PyTorch pads the last axis first (left, right, top, bottom), ONNX has all beginnings and then all ends, OpenVINO has two
lists. A swap shows only where no two sides are alike.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from onnx import helper, numpy_helper
from torch import nn

import mmdeploy_lite.ops  # noqa: F401  (before mmcv and what imports it)
from mmdeploy_lite.export import ExportState, TorchScriptExporter, exporting
from mmdeploy_lite.export.allowed import ALLOWED, unknown_warnings
from mmdeploy_lite.export.metadata import write_metadata
from mmdeploy_lite.registry import REWRITERS
from mmdeploy_lite.rewriting import RewriteContext, build_rewriters

pytest.importorskip('openvino', reason='OpenVINO is not installed')
SIZES = [(11, 14), (8, 5), (9, 10)]  # (h, w)


def answers(model: onnx.ModelProto, feeds: dict[str, np.ndarray], folder) -> dict[str, np.ndarray]:
    """What ONNX Runtime and OpenVINO make of it."""
    from mmdeploy_lite.backends import OpenVINOBackend

    write_metadata(model, dict(task='test'))
    onnx.save(model, folder / 'model.onnx')
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / 'model.onnx', options, providers=['CPUExecutionProvider'])
    (vino,) = OpenVINOBackend(threads=1).load(folder / 'model.onnx').run(feeds).values()
    return {'ONNX Runtime': session.run(None, feeds)[0], 'OpenVINO': vino}


def check(expected: np.ndarray, found: dict[str, np.ndarray]) -> None:
    for name, answer in found.items():
        assert answer.shape == expected.shape and answer.dtype == expected.dtype, name
        np.testing.assert_allclose(answer, expected, atol=1e-5, rtol=1e-5, err_msg=name)


def adaptive_conv() -> nn.Module:
    """TensorFlow's 'same': one more below and right, and as much as the image's size asks for."""
    from mmcv.cnn.bricks import Conv2dAdaptivePadding

    return Conv2dAdaptivePadding(2, 3, (4, 3), stride=(3, 2))


def adaptive_padding(kind: str) -> nn.Module:
    from mmdet.models.layers import AdaptivePadding

    return AdaptivePadding((4, 5), stride=(3, 4), padding=kind)


MODULES = {
    'constant': lambda: nn.Sequential(nn.ConstantPad2d((1, 2, 3, 0), 0.5), nn.Conv2d(2, 3, 3)),
    'zero, then conv': lambda: nn.Sequential(nn.ZeroPad2d((0, 1, 2, 3)), nn.Conv2d(2, 3, (2, 3), padding=(1, 0))),
    'reflect': lambda: nn.Sequential(nn.ReflectionPad2d((0, 1, 2, 3)), nn.Conv2d(2, 3, 3)),
    'replicate': lambda: nn.Sequential(nn.ReplicationPad2d((3, 2, 0, 1)), nn.Conv2d(2, 3, 3)),
    'cropping': lambda: nn.ConstantPad2d((-1, 2, 1, -2), 7.0),
    'same': lambda: nn.Conv2d(2, 3, (4, 2), padding='same'),
    'Conv2dAdaptivePadding': adaptive_conv,
    'AdaptivePadding corner': lambda: adaptive_padding('corner'),
    'AdaptivePadding same': lambda: adaptive_padding('same'),
    'max pool': lambda: nn.MaxPool2d((3, 2), stride=2, padding=(1, 0), ceil_mode=True),
    'average pool': lambda: nn.AvgPool2d((2, 3), stride=2, padding=(0, 1), count_include_pad=False),
    'average pool with pads': lambda: nn.AvgPool2d((2, 3), stride=(1, 2), padding=(1, 0), count_include_pad=True),
    'transposed': lambda: nn.ConvTranspose2d(2, 3, 3, stride=(3, 2), padding=(0, 1), output_padding=(2, 1)),
}


@pytest.mark.parametrize('dynamic', [False, True], ids=['fixed', 'any size'])
@pytest.mark.parametrize('name', MODULES)
def test_of_layers(name, dynamic, tmp_path, needs_torch):
    if dynamic and name == 'max pool':
        needs_torch(2, 2, 'exporting pools of any size that round up')
    torch.manual_seed(0)
    module = MODULES[name]().eval()
    state = ExportState(dynamic=dynamic)
    keys = ['Conv2dAdaptivePadding', 'AdaptivePadding', 'Ceil']
    rewriters = build_rewriters({key: dict(type=key) for key in keys}, REWRITERS)
    image = torch.randn(1, 2, *SIZES[0])
    axes = {'image': {2: 'height', 3: 'width'}} if dynamic else {}
    with RewriteContext(rewriters), exporting(state):
        graph = TorchScriptExporter().export(module, [image], ['image'], ['out'], axes)
    assert unknown_warnings(graph.warnings, ALLOWED) == []
    for size in SIZES if dynamic else SIZES[:1]:
        image = torch.randn(1, 2, *size)
        with torch.no_grad():
            expected = module(image).numpy()
        check(expected, answers(graph.model, {'image': image.numpy()}, tmp_path))


# top, left, bottom, right as ONNX has them
PADS = [(0, 1, 2, 3), (3, 2, 1, 0), (1, 0, 0, 2)]


def one_node(operator: str, inputs: dict[str, np.ndarray], **attributes) -> onnx.ModelProto:
    weights = [numpy_helper.from_array(value, name) for name, value in inputs.items()]
    graph = helper.make_graph(
        [helper.make_node(operator, ['image', *inputs], ['out'], **attributes)],
        'one',
        [helper.make_tensor_value_info('image', onnx.TensorProto.FLOAT, [1, 2, 'height', 'width'])],
        [helper.make_tensor_value_info('out', onnx.TensorProto.FLOAT, [1, None, None, None])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)


@pytest.mark.parametrize('pads', PADS)
@pytest.mark.parametrize('operator', ['Conv', 'MaxPool', 'AveragePool', 'ConvTranspose', 'Pad'])
def test_of_operators(operator, pads, tmp_path):
    """Pads as the operator's own attribute, which PyTorch cannot write and an optimizer makes of Pad and Conv."""
    generator = np.random.default_rng(0)
    image = generator.normal(size=(1, 2, 9, 12)).astype(np.float32)
    weight = generator.normal(size=(3, 2, 4, 4)).astype(np.float32)
    top, left, bottom, right = pads
    padded = F.pad(torch.from_numpy(image), (left, right, top, bottom))
    if operator == 'Conv':
        expected = F.conv2d(padded, torch.from_numpy(weight), stride=2)
        model = one_node('Conv', {'weight': weight}, pads=pads, strides=[2, 2])
    elif operator == 'MaxPool':
        low = F.pad(torch.from_numpy(image), (left, right, top, bottom), value=-np.inf)
        expected = F.max_pool2d(low, 4, stride=2)
        model = one_node('MaxPool', {}, kernel_shape=[4, 4], pads=pads, strides=[2, 2])
    elif operator == 'AveragePool':
        expected = F.avg_pool2d(padded, 4, stride=2)
        model = one_node('AveragePool', {}, kernel_shape=[4, 4], pads=pads, strides=[2, 2], count_include_pad=1)
    elif operator == 'ConvTranspose':
        whole = F.conv_transpose2d(torch.from_numpy(image), torch.from_numpy(weight[:2]), stride=2)
        height, width = whole.shape[-2:]
        expected = whole[:, :, top : height - bottom, left : width - right]
        model = one_node('ConvTranspose', {'weight': weight[:2]}, pads=pads, strides=[2, 2])
    else:
        expected = F.pad(torch.from_numpy(image), (left, right, top, bottom), value=3.0)
        amounts = np.array([0, 0, top, left, 0, 0, bottom, right])
        model = one_node('Pad', {'pads': amounts, 'value': np.float32(3)})
    check(expected.contiguous().numpy(), answers(model, {'image': image}, tmp_path))
