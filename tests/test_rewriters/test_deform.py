"""Deformable convolution of standard operators, against mmcv's own."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch

import mmdeploy_lite.ops  # noqa: F401
from mmdeploy_lite.export import TorchScriptExporter
from mmdeploy_lite.rewriters.mmcv_deform import DeformConv, ModulatedDeformConv
from mmdeploy_lite.rewriting import RewriteContext

CASES = [  # kernel, stride, padding, dilation, groups, deform_groups, size
    ((3, 3), (1, 1), (1, 1), (1, 1), 1, 1, (7, 9)),
    ((3, 3), (2, 1), (0, 2), (2, 1), 2, 4, (9, 8)),
    ((1, 3), (1, 2), (0, 1), (1, 1), 4, 2, (5, 6)),
    ((3, 3), (1, 1), (1, 1), (1, 1), 1, 1, (1, 1)),
]


def make(case, modulated):
    kernel, stride, padding, dilation, groups, deform_groups, size = case
    generator = torch.Generator().manual_seed(sum(size))
    out = [(size[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in (0, 1)]
    taps = kernel[0] * kernel[1]
    rand = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    x, weight = rand(2, 8, *size), rand(4, 8 // groups, *kernel)
    # offsets that reach well outside
    offset = rand(2, deform_groups * taps * 2, *out) * 2
    if modulated:
        mask = rand(2, deform_groups * taps, *out).sigmoid()
        return (x, offset, mask, weight, rand(4), stride, padding, dilation, groups, deform_groups)
    return (x, offset, weight, stride, padding, dilation, groups, deform_groups)


def call(modulated, args):
    from mmcv.ops import deform_conv, modulated_deform_conv

    function = modulated_deform_conv.modulated_deform_conv2d if modulated else deform_conv.deform_conv2d
    return function(*args)


def context():
    return RewriteContext({'plain': DeformConv(), 'modulated': ModulatedDeformConv()})


@pytest.mark.parametrize('modulated', [False, True])
@pytest.mark.parametrize('case', CASES)
def test_equals_mmcv(case, modulated):
    args = make(case, modulated)
    want = call(modulated, args)
    with context() as rewriting:
        got = call(modulated, args)
    assert rewriting.fired['modulated' if modulated else 'plain']
    assert got.shape == want.shape
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize('modulated', [False, True])
def test_one_file_for_all_sizes(modulated):
    args = make(CASES[1], modulated)
    count = 3 if modulated else 2

    class Module(torch.nn.Module):
        def forward(self, *tensors):
            return call(modulated, (*tensors, *args[count:]))

    names = ['x', 'offset', 'mask'][:count]
    axes = {name: {2: f'{name}_h', 3: f'{name}_w'} for name in names}
    with context():
        model = TorchScriptExporter().export(Module(), args[:count], names, ['out'], axes).model
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=['CPUExecutionProvider'])
    for size in ((9, 8), (12, 10)):
        inputs = make((*CASES[1][:6], size), modulated)[:count]
        want = call(modulated, (*inputs, *args[count:])).numpy()
        got = session.run(None, {name: value.numpy() for name, value in zip(names, inputs, strict=True)})[0]
        np.testing.assert_allclose(got, want, atol=1e-4, rtol=1e-4)


def test_offsets_of_a_larger_map(traced):
    """As DyHead has them: mmcv's kernel reads the first of them as if they were of the output's size."""

    def function(x, offset, mask, weight):
        from mmcv.ops.modulated_deform_conv import modulated_deform_conv2d

        return modulated_deform_conv2d(x, offset, mask, weight, None, 1, 1, 1, 1, 1)

    def args(height, width):
        generator = torch.Generator().manual_seed(height)
        offset = torch.randn(2, 18, 2 * height, 2 * width, generator=generator)
        mask = torch.rand(2, 9, 2 * height, 2 * width, generator=generator)
        return torch.randn(2, 4, height, width, generator=generator), offset, mask, torch.randn(3, 4, 3, 3)

    x, offset, mask, weight = args(3, 4)
    first = offset.flatten(1)[:, : 18 * 12].view(2, 18, 3, 4), mask.flatten(1)[:, : 9 * 12].view(2, 9, 3, 4)
    torch.testing.assert_close(function(x, offset, mask, weight), function(x, *first, weight))
    graph = traced(function, args(3, 4), ['ModulatedDeformConv'], [[2, 3], [2, 3], [2, 3]])
    assert graph.unknown == []
    for size in ((3, 4), (5, 2)):
        graph.check(*args(*size), atol=1e-4)
