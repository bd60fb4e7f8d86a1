"""Random weights that answer as trained ones do: calibrated, and silent on the image that shows nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import mmdeploy_lite.ops  # noqa: F401  (before mmcv and what imports it)
from mmdeploy_lite.testing import calibrate
from mmdeploy_lite.testing.silence import silence


@pytest.mark.parametrize(('kind', 'foreground'), [('BBoxHead', 0), ('MultiInstanceBBoxHead', 1)])
def test_the_class_is_silenced_and_not_the_background(kind, foreground):
    """CrowdDet's background is the first class."""
    torch.manual_seed(0)
    head = type(kind, (nn.Module,), {'forward': lambda self, x: self.fc_cls(x)})()
    head.num_classes, head.loss_cls, head.fc_cls = 1, SimpleNamespace(use_sigmoid=False), nn.Linear(4, 2)
    rows = torch.randn(50, 4)
    silence(nn.Sequential(head), lambda: head(rows), 0.3)
    best = head(rows).softmax(-1)[:, foreground].max().item()
    assert 0.25 < best < 0.3


def test_layers_that_standardize_their_weights_have_unit_spread_too():
    """Their output does not grow with their weights."""
    from mmcv.cnn.bricks.conv_ws import ConvAWS2d

    network = nn.Sequential(*[ConvAWS2d(8, 8, 3, padding=1, bias=False) for _ in range(3)]).eval()
    image = torch.randn(2, 8, 16, 16, generator=torch.Generator().manual_seed(0))
    calibrate(network, lambda: network(image))
    with torch.no_grad():
        assert network(image).std().item() == pytest.approx(1, abs=0.05)
