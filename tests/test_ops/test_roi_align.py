"""RoIAlign against one sample at a time, a linear ramp, and numerical derivatives."""

from __future__ import annotations

import math

import pytest
import torch
from mmcv.ops import RoIAlign, roi_align
from torch import Tensor

ROIS = torch.tensor(
    [
        [0, 0, 0, 20, 15],
        [1, -9, -7, 40, 30],  # far over every border
        [0, 3, 3, 3, 9],  # no width
        [1, 4.2, 3.1, 4.9, 3.3],  # less than a pixel
        [1, 30, 30, 60, 60],  # outside
        [0, 8, 8, 8, 8],  # no area
        [0, -2, -2, 26, 18],  # exactly to -1 and to the size of the map, at scale 0.5
        [1, 1, 2, 22.5, 4.1],
    ],
    dtype=torch.float64,
)


def sample(plane: Tensor, y: float, x: float) -> float:
    height, width = plane.shape
    if y < -1 or y > height or x < -1 or x > width:
        return 0.0
    y, x = min(max(y, 0.0), height - 1), min(max(x, 0.0), width - 1)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    dy, dx = y - top, x - left
    upper = (1 - dx) * plane[top, left] + dx * plane[top, right]
    lower = (1 - dx) * plane[bottom, left] + dx * plane[bottom, right]
    return float((1 - dy) * upper + dy * lower)


def one_by_one(
    features: Tensor, rois: Tensor, bins: tuple[int, int], scale: float, ratio: int, mode: str, aligned: bool
) -> Tensor:
    output = features.new_zeros(len(rois), features.size(1), *bins)
    shift = 0.5 if aligned else 0.0
    for n, (batch, *corners) in enumerate(rois.tolist()):
        x1, y1, x2, y2 = (value * scale - shift for value in corners)
        width, height = x2 - x1, y2 - y1
        if not aligned:
            width, height = max(width, 1.0), max(height, 1.0)
        step_y, step_x = height / bins[0], width / bins[1]
        count_y, count_x = ratio or math.ceil(step_y), ratio or math.ceil(step_x)
        for c in range(features.size(1)):
            for i in range(bins[0]):
                for j in range(bins[1]):
                    values = [
                        sample(
                            features[int(batch), c],
                            y1 + (i + (a + 0.5) / count_y) * step_y,
                            x1 + (j + (b + 0.5) / count_x) * step_x,
                        )
                        for a in range(count_y)
                        for b in range(count_x)
                    ]
                    average = sum(values) / max(len(values), 1)
                    output[n, c, i, j] = average if mode == 'avg' else max([-10000.0, *values])
    return output


@pytest.mark.parametrize('aligned', [True, False])
@pytest.mark.parametrize('mode', ['avg', 'max'])
@pytest.mark.parametrize('ratio', [0, 1, 3])
def test_equals_one_sample_at_a_time(ratio: int, mode: str, aligned: bool) -> None:
    features = torch.randn(2, 3, 9, 13, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = one_by_one(features, ROIS, (3, 4), 0.5, ratio, mode, aligned)
    got = roi_align(features, ROIS, (3, 4), 0.5, ratio, mode, aligned)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    single = roi_align(features.float(), ROIS.float(), (3, 4), 0.5, ratio, mode, aligned)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize('ratio', [0, 2])
@pytest.mark.parametrize('aligned', [True, False])
def test_ramp(ratio: int, aligned: bool) -> None:
    """On an image that rises linearly a bin's average is the value at its centre."""
    y, x = torch.meshgrid(torch.arange(40.0), torch.arange(50.0), indexing='ij')
    features = (3 * x + 5 * y)[None, None]
    rois = torch.tensor([[0, 10.0, 20, 66, 48], [0, 33, 12, 40, 19]])
    got = roi_align(features, rois, 7, 0.5, ratio, 'avg', aligned)
    shift = 0.5 if aligned else 0.0
    for n, (_, x1, y1, x2, y2) in enumerate(rois.tolist()):
        for i in range(7):
            for j in range(7):
                centre_x = (x1 + (x2 - x1) * (j + 0.5) / 7) * 0.5 - shift
                centre_y = (y1 + (y2 - y1) * (i + 0.5) / 7) * 0.5 - shift
                assert got[n, 0, i, j].item() == pytest.approx(3 * centre_x + 5 * centre_y, abs=1e-3)


def test_whole_pixels_are_copied() -> None:
    features = torch.arange(12.0).view(1, 1, 3, 4)
    got = roi_align(features, torch.tensor([[0, 0.0, 0, 4, 3]]), (3, 4), 1.0, 1, 'avg', True)
    assert torch.equal(got, features)


@pytest.mark.parametrize(
    ('centre', 'expected'), [(-1.25, 0), (-1, 2), (-0.5, 2), (0, 2), (0.5, 3), (4, 6), (4.5, 6), (5, 6), (5.25, 0)]
)
def test_border(centre: float, expected: float) -> None:
    """Samples up to one pixel over the border, it included, have the value of the pixel at the border."""
    row = torch.tensor([2.0, 4, 0, 0, 6])  # five pixels: the positions 4 to 5 lie over the border
    along_x = torch.tensor([[0, centre - 1, 1, centre + 1, 3]])
    along_y = torch.tensor([[0, 1, centre - 1, 3, centre + 1]])
    features = row.expand(1, 1, 5, 5)
    assert roi_align(features, along_x, 1, 1.0, 1, 'avg', False).item() == expected
    assert roi_align(features.transpose(2, 3), along_y, 1, 1.0, 1, 'avg', False).item() == expected


def test_no_regions() -> None:
    features = torch.ones(1, 3, 8, 8)
    for mode in ('avg', 'max'):
        assert roi_align(features, torch.zeros(0, 5), 7, 1.0, 0, mode, True).shape == (0, 3, 7, 7)


def test_many_regions_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded by working in parts, which must not show."""
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(2, 5, 30, 40, generator=generator)
    corner = torch.rand(60, 2, generator=generator) * 100
    rois = torch.cat([torch.arange(60)[:, None] % 2, corner, corner + torch.rand(60, 2, generator=generator) * 90], 1)
    for mode in ('avg', 'max'):
        whole = roi_align(features, rois, 7, 0.25, 0, mode, True)
        with monkeypatch.context() as patch:
            patch.setattr('mmdeploy_lite.ops.roi_align.MAX_ELEMENTS', 1000)
            assert torch.equal(roi_align(features, rois, 7, 0.25, 0, mode, True), whole)
    # Each region alone gives the same, whatever the others need.
    alone = torch.cat([roi_align(features, roi[None], 7, 0.25, 0, 'avg', True) for roi in rois])
    torch.testing.assert_close(roi_align(features, rois, 7, 0.25, 0, 'avg', True), alone)


@pytest.mark.parametrize('roi', [[0, 5.0, 5, 4, 9], [0, 5, 5, 9, 4], [0, math.nan, 5, 9, 9]])
def test_negative_size_is_refused_when_aligned(roi: list[float]) -> None:
    with pytest.raises(RuntimeError, match='negative or undefined size'):
        roi_align(torch.ones(1, 1, 8, 8), torch.tensor([roi]), 2, 1.0, 0, 'avg', True)


def test_negative_size_is_a_pixel_when_not_aligned() -> None:
    features = torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    got = roi_align(features, torch.tensor([[0, 5.0, 5, 1, 2]]), 2, 1.0, 0, 'avg', False)
    assert torch.equal(got, roi_align(features, torch.tensor([[0, 5.0, 5, 6, 6]]), 2, 1.0, 0, 'avg', False))


@pytest.mark.parametrize('image', [-1, 2])
def test_image_outside_the_batch_is_refused(image: int) -> None:
    with pytest.raises(RuntimeError, match='batch of 2'):
        roi_align(torch.ones(2, 1, 8, 8), torch.tensor([[image, 1.0, 1, 4, 4]]), 2, 1.0, 0, 'avg', True)


@pytest.mark.parametrize('aligned', [True, False])
@pytest.mark.parametrize('mode', ['avg', 'max'])
def test_gradient(mode: str, aligned: bool) -> None:
    features = torch.randn(2, 1, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rois = ROIS * 0.5
    rois[:, 0] = ROIS[:, 0]
    assert torch.autograd.gradcheck(
        lambda x: roi_align(x, rois, (2, 3), 0.5, 0, mode, aligned), features.requires_grad_()
    )


def test_module_and_memory_layout() -> None:
    features = torch.randn(1, 4, 12, 10, generator=torch.Generator().manual_seed(0))
    rois = torch.tensor([[0, 4.0, 4, 30, 40]])
    layer = RoIAlign(output_size=7, spatial_scale=1 / 4, sampling_ratio=0)
    expected = layer(features, rois)
    assert torch.equal(layer(features.to(memory_format=torch.channels_last), rois), expected)
    assert torch.equal(layer(features.transpose(2, 3).contiguous().transpose(2, 3), rois), expected)
