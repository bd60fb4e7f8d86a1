"""Deformable convolution against ordinary convolution, shifted images, and one sample at a time."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from mmcv.ops import DeformConv2d, ModulatedDeformConv2d, deform_conv2d, modulated_deform_conv2d
from torch import Tensor

#: kernel, stride, padding, dilation (y, x); groups, deform groups
GEOMETRIES = [
    ((3, 3), (1, 1), (1, 1), (1, 1), 1, 1),
    ((1, 1), (1, 1), (0, 0), (1, 1), 1, 1),
    ((3, 2), (2, 1), (0, 2), (1, 2), 1, 2),
    ((2, 3), (1, 2), (2, 1), (2, 1), 2, 1),
    ((3, 3), (2, 2), (1, 1), (2, 2), 2, 4),
    ((3, 3), (1, 1), (1, 1), (1, 1), 4, 2),
]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + sum(shape)))


def inputs(geometry: tuple, batch: int = 2, channels: int = 8, size: tuple[int, int] = (7, 9)) -> tuple[Tensor, ...]:
    """Image, weight, offset, mask and bias that fit together."""
    kernel, stride, padding, dilation, groups, deform_groups = geometry
    out = [(size[d] + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1) // stride[d] + 1 for d in (0, 1)]
    samples = deform_groups * kernel[0] * kernel[1]
    return (
        random(batch, channels, *size),
        random(4, channels // groups, *kernel, seed=1),
        random(batch, 2 * samples, *out, seed=2) * 2,
        random(batch, samples, *out, seed=3).sigmoid(),
        random(4, seed=4),
    )


def pixel(plane: Tensor, y: int, x: int) -> float:
    """Zero outside."""
    return float(plane[y, x]) if 0 <= y < plane.size(0) and 0 <= x < plane.size(1) else 0.0


def sample(plane: Tensor, y: float, x: float) -> float:
    top, left = math.floor(y), math.floor(x)
    dy, dx = y - top, x - left
    return (
        (1 - dy) * (1 - dx) * pixel(plane, top, left)
        + (1 - dy) * dx * pixel(plane, top, left + 1)
        + dy * (1 - dx) * pixel(plane, top + 1, left)
        + dy * dx * pixel(plane, top + 1, left + 1)
    )


def one_by_one(image: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor, geometry: tuple) -> Tensor:
    kernel, stride, padding, dilation, groups, deform_groups = geometry
    batch, _, rows, columns = offset.shape
    output = image.new_zeros(batch, weight.size(0), rows, columns)
    in_group, out_group = weight.size(1), weight.size(0) // groups
    in_deform = image.size(1) // deform_groups
    for b in range(batch):
        for o in range(weight.size(0)):
            for row in range(rows):
                for column in range(columns):
                    total = float(bias[o])
                    for c in range(in_group):
                        channel = o // out_group * in_group + c
                        for i in range(kernel[0]):
                            for j in range(kernel[1]):
                                k = channel // in_deform * kernel[0] * kernel[1] + i * kernel[1] + j
                                y = (
                                    row * stride[0]
                                    - padding[0]
                                    + i * dilation[0]
                                    + float(offset[b, 2 * k, row, column])
                                )
                                x = (
                                    column * stride[1]
                                    - padding[1]
                                    + j * dilation[1]
                                    + float(offset[b, 2 * k + 1, row, column])
                                )
                                value = sample(image[b, channel], y, x) * float(mask[b, k, row, column])
                                total += value * float(weight[o, c, i, j])
                    output[b, o, row, column] = total
    return output


@pytest.mark.parametrize('geometry', GEOMETRIES)
def test_zero_offsets_are_a_convolution(geometry: tuple) -> None:
    _, stride, padding, dilation, groups, deform_groups = geometry
    image, weight, offset, mask, bias = inputs(geometry)
    zero = torch.zeros_like(offset)
    expected = F.conv2d(image, weight, None, stride, padding, dilation, groups)
    got = deform_conv2d(image, zero, weight, stride, padding, dilation, groups, deform_groups)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    expected = F.conv2d(image, weight, bias, stride, padding, dilation, groups)
    got = modulated_deform_conv2d(
        image, zero, torch.ones_like(mask), weight, bias, stride, padding, dilation, groups, deform_groups
    )
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize('shift', [(0, 1), (-2, 0), (3, -1), (0, 40), (-40, 0)])
def test_integer_offsets_shift_the_image(shift: tuple[int, int]) -> None:
    geometry = GEOMETRIES[0]
    image, weight, offset, _, _ = inputs(geometry)
    offset[:, 0::2], offset[:, 1::2] = shift
    far = 50
    canvas = F.pad(image, (far, far, far, far))
    top, left = far + shift[0] - 1, far + shift[1] - 1  # one more pixel on each side in place of the padding
    shifted = canvas[:, :, top : top + image.size(2) + 2, left : left + image.size(3) + 2]
    got = deform_conv2d(image, offset, weight, 1, 1)
    torch.testing.assert_close(got, F.conv2d(shifted, weight), rtol=0, atol=1e-12)


@pytest.mark.parametrize('geometry', GEOMETRIES)
def test_equals_one_sample_at_a_time(geometry: tuple) -> None:
    _, stride, padding, dilation, groups, deform_groups = geometry
    image, weight, offset, mask, bias = inputs(geometry, size=(5, 6))
    args = (stride, padding, dilation, groups, deform_groups)
    expected = one_by_one(image, weight, offset, torch.ones_like(mask), torch.zeros_like(bias), geometry)
    torch.testing.assert_close(deform_conv2d(image, offset, weight, *args), expected, rtol=0, atol=1e-12)
    expected = one_by_one(image, weight, offset, mask, bias, geometry)
    got = modulated_deform_conv2d(image, offset, mask, weight, bias, *args)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    single = modulated_deform_conv2d(*(t.float() for t in (image, offset, mask, weight, bias)), *args)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize('geometry', [GEOMETRIES[2], GEOMETRIES[3]])
def test_parts_do_not_show(geometry: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row of the output at a time, forward and backward."""
    image, weight, offset, mask, bias = inputs(geometry)
    results = []
    for limit in (2**23, 1):
        monkeypatch.setattr('mmdeploy_lite.ops.deform_conv.MAX_ELEMENTS', limit)
        leaves = [t.clone().requires_grad_() for t in (image, offset, mask, weight, bias)]
        output = modulated_deform_conv2d(*leaves, *geometry[1:])
        results.append([output, *torch.autograd.grad(output.square().sum(), leaves)])
    for whole, parts in zip(*results, strict=True):
        torch.testing.assert_close(parts, whole, rtol=0, atol=1e-9)


@pytest.mark.parametrize('geometry', [GEOMETRIES[2], GEOMETRIES[4]])
def test_gradients(geometry: tuple) -> None:
    image, weight, offset, mask, bias = inputs(geometry, batch=1, channels=4, size=(4, 4))
    # A step of the numerical derivative must not cross a pixel, where the interpolation has a kink.
    offset = offset.floor() + 0.2 + 0.6 * (offset - offset.floor())
    leaves = [t.requires_grad_() for t in (image, offset, mask, weight, bias)]
    args = geometry[1:]
    assert torch.autograd.gradcheck(lambda x, o, w: deform_conv2d(x, o, w, *args), (image, offset, weight))
    assert torch.autograd.gradcheck(lambda *t: modulated_deform_conv2d(*t, *args), leaves)
    assert torch.autograd.gradcheck(
        lambda x, o, m, w: modulated_deform_conv2d(x, o, m, w, None, *args), (image, offset, mask, weight)
    )


def test_gradients_at_zero_offsets() -> None:
    """Training starts here: all samples on pixels, the padding's at exactly -1 and `size`, which move nothing."""
    geometry = GEOMETRIES[0]
    image, weight, offset, _, _ = inputs(geometry, batch=1)
    offset = torch.zeros_like(offset).requires_grad_()
    deform_conv2d(image, offset, weight, 1, 1).sum().backward()
    # Kernel position 1 lies one pixel over the top border for the first row, position 3 over the left one for the first
    # column, 5 and 7 over the right and the bottom one. Their offsets are channels 2 k and 2 k + 1.
    grad = offset.grad[0]
    for part in (grad[2:4, 0], grad[6:8, :, 0], grad[10:12, :, -1], grad[14:16, -1]):
        assert torch.equal(part, torch.zeros_like(part))
    # The derivative on a pixel is that towards the next one: centre of the kernel, second pixel.
    slope = (weight.sum(dim=0)[:, 1, 1] * (image[0, :, 2, 1] - image[0, :, 1, 1])).sum()
    assert offset.grad[0, 8, 1, 1].item() == pytest.approx(slope.item())


@pytest.mark.parametrize('value', [math.inf, -math.inf, 1e30])
def test_offsets_out_of_the_world_are_zero(value: float) -> None:
    image, weight, offset, _, _ = inputs(GEOMETRIES[0])
    got = deform_conv2d(image, torch.full_like(offset, value), weight, 1, 1)
    assert torch.equal(got, torch.zeros_like(got))


def test_nan_offsets_show() -> None:
    image, weight, offset, _, _ = inputs(GEOMETRIES[0])
    offset[0, 0, 2, 3] = math.nan
    got = deform_conv2d(image, offset, weight, 1, 1)
    assert got.isnan().sum() == weight.size(0)
    assert got[0, :, 2, 3].isnan().all()


def test_modules() -> None:
    """The layers as models use them, with an image smaller than the kernel in one direction."""
    torch.manual_seed(0)
    layer = DeformConv2d(4, 6, 3, padding=1)
    image = torch.randn(1, 4, 2, 5)
    torch.testing.assert_close(
        layer(image, torch.zeros(1, 18, 2, 5)), F.conv2d(image, layer.weight, padding=1), rtol=0, atol=1e-5
    )
    layer = ModulatedDeformConv2d(4, 6, 3, stride=2, padding=1)
    image = torch.randn(2, 4, 8, 8)
    got = layer(image, torch.zeros(2, 18, 4, 4), torch.full((2, 9, 4, 4), 0.5))
    torch.testing.assert_close(got, F.conv2d(image, layer.weight * 0.5, layer.bias, 2, 1), rtol=0, atol=1e-5)
