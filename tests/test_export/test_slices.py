"""Slices that keep everything are gone, the others stay."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from mmdeploy_lite.export.optimize import optimize


def whole(x):
    y = torch.nn.functional.interpolate(x, size=(x.shape[2] * 2, x.shape[3] * 2), mode='bilinear')
    return y[0:1, :, 0 : y.shape[2], 0 : y.shape[3]] * 2


def part(x):
    return x[:, :, 0 : x.shape[2] - 1, 0 : x.shape[3]] * 2


def other_axis(x):
    return x[:, :, 0 : x.shape[3]] * 2


def of_another(x):
    return torch.cat([x, x], 2)[:, :, 0 : x.shape[2]] * 2


def backwards(x):
    return x[:, :, 1:, 1 : x.shape[3]] * 2


def of_a_number(x):
    return x[:, :, 0:20] * 2


def data_slices(model):
    """Slices of images, not of shapes."""
    shapes = {node.output[0] for node in model.graph.node if node.op_type in ('Shape', 'Cast')}
    return [node for node in model.graph.node if node.op_type == 'Slice' and node.input[0] not in shapes]


def run(model, image):
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {'image': image})[0]


@pytest.mark.parametrize('dynamic', [False, True])
@pytest.mark.parametrize(
    ('function', 'kept'),
    # with fixed sizes, 12 x 16, it is known that the 16 of the width are not less than the height
    [
        (whole, (0, 0)),
        (part, (1, 1)),
        (other_axis, (0, 1)),
        (of_another, (1, 1)),
        (backwards, (1, 1)),
        (of_a_number, (0, 1)),
    ],
)
def test_what_is_kept(export, image, function, kept, dynamic):
    traced = export(function, image(), dynamic=dynamic).model
    cleaned = optimize(traced)
    onnx.checker.check_model(cleaned, full_check=True)
    assert data_slices(traced)
    assert bool(data_slices(cleaned)) == kept[dynamic]
    for height, width in [(40, 24), (24, 40), (12, 16)] if dynamic else [(12, 16)]:
        other = image(1, height, width).numpy()
        np.testing.assert_array_equal(run(cleaned, other), run(traced, other))
