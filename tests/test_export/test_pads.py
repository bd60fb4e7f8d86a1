"""Convolutions whose padding PyTorch is told in words."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mmdeploy_lite.export import ExportState, TorchScriptExporter, exporting


@pytest.mark.parametrize(
    'make',
    [
        lambda: nn.Conv2d(3, 4, (4, 3), padding='same', dilation=(2, 3)),
        lambda: nn.Conv2d(3, 4, (2, 5), padding='same'),
        lambda: nn.Conv2d(3, 4, 3, padding='valid', dilation=2),
        lambda: nn.Conv2d(3, 6, 4, padding='same', dilation=3, groups=3),
    ],
)
def test_in_numbers(make, tmp_path):
    import onnxruntime

    torch.manual_seed(0)
    layer = make().eval().requires_grad_(False)
    with exporting(ExportState()):
        graph = TorchScriptExporter().export(layer, [torch.rand(1, 3, 16, 18)], ['x'], ['y'], {'x': {2: 'h', 3: 'w'}})
    names = {item.name for node in graph.model.graph.node if node.op_type == 'Conv' for item in node.attribute}
    assert 'auto_pad' not in names and 'pads' in names
    session = onnxruntime.InferenceSession(graph.model.SerializeToString(), providers=['CPUExecutionProvider'])
    for size in ((16, 18), (23, 20)):
        image = torch.rand(1, 3, *size)
        (answer,) = session.run(None, {'x': image.numpy()})
        torch.testing.assert_close(torch.from_numpy(answer), layer(image), atol=1e-5, rtol=1e-5)
