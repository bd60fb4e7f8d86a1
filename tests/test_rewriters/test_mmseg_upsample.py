"""Slide inference of logits smaller than the windows, against mmseg's."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict
from onnx import numpy_helper
from torch import nn

from mmdeploy_lite.rewriters.mmseg_upsample import _uneven, separated

from .conftest import image, slide

SLIDE = ['SlideInference', 'PredictByFeat', 'Resize']


class Segmentor(nn.Module):
    """Logits of a part of the size, upsampled by mmseg's own head code, and what the model does with them then."""

    out_channels = 3

    def __init__(self, crop, stride, shrink, align_corners=False, then=lambda logits: logits):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, self.out_channels, shrink + 2, stride=shrink, padding=1)
        self.test_cfg = ConfigDict(mode='slide', crop_size=crop, stride=stride)
        self.head = SimpleNamespace(align_corners=align_corners)
        self.then = then
        self.requires_grad_(False)

    def encode_decode(self, inputs, batch_img_metas):
        from mmseg.models.decode_heads.decode_head import BaseDecodeHead

        return self.then(BaseDecodeHead.predict_by_feat(self.head, self.conv(inputs), batch_img_metas))


def checked(traced, model, size, batch=1):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # of upsample with align_corners
        graph = traced(slide(model), [image(0, batch, 3, *size)], SLIDE)
        graph.check(image(1, batch, 3, *size), atol=2e-6)
    assert graph.unknown == []
    return graph.ops()


@pytest.mark.parametrize('batch', [1, 2])
@pytest.mark.parametrize('align_corners', [False, True])
@pytest.mark.parametrize(
    ('crop', 'stride', 'size'),
    [
        ((64, 64), (43, 43), (100, 150)),  # the last window is uneven in both directions
        ((64, 64), (43, 43), (64, 64)),
        ((64, 64), (43, 43), (48, 100)),  # smaller than the crop in one direction
        ((32, 48), (20, 48), (36, 50)),
        ((16, 16), (5, 7), (36, 50)),  # up to four windows over a pixel, in each direction
    ],
)
def test_no_window_is_upsampled(traced, crop, stride, size, align_corners, batch):
    ops = checked(traced, Segmentor(crop, stride, 4, align_corners), size, batch)
    assert 'Resize' not in ops and 'MatMul' in ops and ops.count('Conv') == 1


def test_no_window_is_upsampled_by_torch_export(symbolic):
    ops = checked(symbolic, Segmentor((64, 64), (43, 43), 4), (100, 150), batch=2)
    assert 'Resize' not in ops and 'MatMul' in ops and ops.count('Conv') == 1


def test_logits_almost_as_large_are(traced):
    model = Segmentor((64, 64), (43, 43), 1)
    ops = checked(traced, model, (100, 150))
    assert 'MatMul' not in ops and 'Div' in ops


def test_logits_that_the_model_goes_on_with_are(traced):
    model = Segmentor((64, 64), (43, 43), 4, then=lambda logits: logits.softmax(dim=1))
    ops = checked(traced, model, (100, 150))
    assert 'MatMul' not in ops and 'Resize' in ops


def test_outside_of_slide_inference_heads_upsample(traced):
    model = Segmentor((64, 64), (43, 43), 4)

    def function(inputs):
        return model.encode_decode(inputs, [dict(img_shape=(64, 96))])

    graph = traced(function, [image(0, 1, 3, 64, 96)], SLIDE)
    graph.check(image(1, 1, 3, 64, 96), atol=1e-6)
    assert graph.ops().count('Resize') == 1


def test_separated():
    def bilinear(logits):
        return nn.functional.interpolate(logits, (40, 36), mode='bilinear')

    rows, columns = separated(bilinear, image(0, 2, 5, 10, 12))
    assert (rows.shape, columns.shape) == ((40, 10), (12, 36))
    logits = image(1, 2, 5, 10, 12)
    torch.testing.assert_close(rows @ logits @ columns, bilinear(logits))
    # what no two matrices are
    assert separated(lambda logits: bilinear(logits) + 0.1, logits) is None
    assert separated(lambda logits: bilinear(logits).transpose(2, 3), image(1, 1, 1, 10, 10)) is None
    assert separated(lambda logits: bilinear(logits), image(0, 1, 1, 30, 12)) is None


@pytest.mark.parametrize('block', [3100, 2**19])
def test_the_answer_is_made_in_blocks(traced, monkeypatch, block):
    from mmdeploy_lite.rewriters import mmseg_upsample

    monkeypatch.setattr(mmseg_upsample, 'BLOCK', block)
    ops = checked(traced, Segmentor((64, 64), (43, 43), 4), (100, 150))
    widths = [43, 21, 22, 21, 43]  # three windows side by side meet at four borders
    heights = [block // (Segmentor.out_channels * width) | 1 for width in widths]
    assert ops.count('MatMul') == 2 * sum(-(-100 // height) for height in heights)


def test_strips_in_parts_make_the_same_answer(traced, monkeypatch):
    from mmdeploy_lite.rewriters import mmseg_upsample

    joins = []
    for block in (3100, 300):
        monkeypatch.setattr(mmseg_upsample, 'BLOCK', block)
        ops = checked(traced, Segmentor((64, 64), (43, 43), 4), (100, 150))
        joins.append(ops.count('Concat'))
    assert joins[1] == joins[0] + 2  # of at most 40 columns, the two of 43 are two each, put together on their own


@pytest.mark.parametrize('width', [64, 128, 256, 512])
def test_no_block_is_a_multiple_of_64_wide(width):
    (first, middle), (again, last) = _uneven(10, 10 + width, 1000)
    assert (first, last) == (10, 10 + width) and middle == again
    assert (middle - first) % 2 and (last - middle) % 2
    assert _uneven(10, 10 + width + 1, 1000) == [(10, 10 + width + 1)]


@pytest.mark.parametrize('width', [1, 100, 101, 683, 1024])
def test_wide_strips_are_made_in_parts(width):
    parts = _uneven(10, 10 + width, 100)
    assert [part[0] for part in parts] == [10, *(part[1] for part in parts[:-1])] and parts[-1][1] == 10 + width
    assert len(parts) == -(-width // 100) and all(0 < stop - start <= 101 for start, stop in parts)
    assert all((stop - start) % 2 for start, stop in parts[:-1])


def test_nothing_is_multiplied_by_zeros_alone(traced):
    graph = traced(slide(Segmentor((64, 64), (43, 43), 4)), [image(0, 1, 3, 100, 150)], SLIDE)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.model.graph.initializer}
    weights |= {
        node.output[0]: numpy_helper.to_array(node.attribute[0].t)
        for node in graph.model.graph.node
        if node.op_type == 'Constant'
    }
    products = [node for node in graph.model.graph.node if node.op_type == 'MatMul']
    assert len(products) >= 6
    for node in products:
        (index,) = [index for index, name in enumerate(node.input) if name in weights]
        matrix = weights[node.input[index]]
        assert np.abs(matrix).sum(axis=index).all()
