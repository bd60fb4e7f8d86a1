"""Slide inference and resize against mmseg's."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
import torch
from mmengine.config import ConfigDict
from onnx import numpy_helper
from torch import nn

from mmdeploy_lite.errors import UnsupportedError
from mmdeploy_lite.export import ExportState, exporting
from mmdeploy_lite.rewriters.mmseg_slide import SlideInference, WindowGrid
from mmdeploy_lite.rewriting import RewriteContext

from .conftest import image, slide


class Segmentor(nn.Module):
    """What slide inference needs of a model; notes the windows that its network sees."""

    out_channels = 3

    def __init__(self, crop, stride):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, self.out_channels, 5, padding=2)  # the border of a window tells
        self.test_cfg = ConfigDict(mode='slide', crop_size=crop, stride=stride)
        self.seen = []
        self.requires_grad_(False)  # a constant of the graph, since the model is not what is traced

    def encode_decode(self, inputs, batch_img_metas):
        self.seen.append((tuple(inputs.shape), len(batch_img_metas), batch_img_metas[0]['img_shape']))
        return self.conv(inputs)


@pytest.mark.parametrize(
    ('size', 'windows'),
    [
        ((100, 150), 6),  # the last window is uneven in both directions
        ((64, 64), 1),
        ((48, 100), 2),  # smaller than the crop in one direction
        ((40, 30), 1),
        ((107, 150), 6),  # even: 64 + 43
        ((65, 64), 2),
    ],
)
@pytest.mark.parametrize('batch', [1, 2])
def test_grid_is_the_loops(traced, size, windows, batch):
    model = Segmentor((64, 64), (43, 43))
    graph = traced(slide(model), [image(0, batch, 3, *size)], ['SlideInference'])
    assert graph.unknown == []
    graph.check(image(1, batch, 3, *size), atol=1e-5)

    model.seen.clear()
    graph.original(image(1, batch, 3, *size))
    assert len(model.seen) == windows
    shape = model.seen[0][0]
    model.seen.clear()
    graph.eager(image(1, batch, 3, *size))
    window = torch.Size(shape[2:])
    assert model.seen == [((windows * batch, *shape[1:]), windows * batch, window)]  # one batch of all
    assert type(model.seen[0][2]) is torch.Size


@pytest.mark.parametrize(
    ('crop', 'stride', 'size'),
    [
        ((32, 48), (20, 48), (36, 50)),
        ((32, 48), (32, 31), (36, 50)),
        ((16, 16), (5, 7), (31, 30)),  # up to four windows over a pixel
    ],
)
def test_crops_and_strides_that_are_not_square(both, crop, stride, size):
    graph = both(slide(Segmentor(crop, stride)), [image(0, 1, 3, *size)], ['SlideInference'])
    graph.check(image(1, 1, 3, *size), atol=1e-5)
    rows, columns = (WindowGrid.of(*sizes) for sizes in zip(size, crop, stride, strict=True))
    # small strides do not make a graph of thousands of nodes
    assert sum(op != 'Constant' for op in graph.ops()) < 20 + 20 * len(rows.starts) * len(columns.starts)


def test_graph_holds_the_network_once_and_a_constant_count(traced):
    graph = traced(slide(Segmentor((64, 64), (43, 43))), [image(0, 1, 3, 100, 150)], ['SlideInference'])
    assert graph.ops().count('Conv') == 1
    assert not {'ScatterND', 'ScatterElements', 'Loop', 'If', 'Shape', 'NonZero'} & set(graph.ops())
    (division,) = [node for node in graph.model.graph.node if node.op_type == 'Div']
    constants = {value.name: value for value in graph.model.graph.initializer}
    for node in graph.model.graph.node:
        if node.op_type == 'Constant':
            constants[node.output[0]] = node.attribute[0].t
    counts = numpy_helper.to_array(constants[division.input[1]])
    assert counts.shape[-2:] == (100, 150)
    assert (counts.min(), counts.max()) == (1, 4)
    assert isinstance(graph.model, onnx.ModelProto)


@pytest.mark.parametrize(
    ('crop', 'stride', 'traced_at'),
    [((16, 24), (11, 13), (40, 60)), ((16, 24), (16, 24), (16, 24)), ((16, 16), (3, 5), (40, 60))],
    ids=str,
)
def test_any_size_from_one_graph(traced, crop, stride, traced_at):
    model = Segmentor(crop, stride)
    graph = traced(slide(model), [image(0, 2, 3, *traced_at)], ['SlideInference'], [[2, 3]], dynamic=True)
    assert graph.unknown == []
    assert 'ScatterND' not in graph.ops() and graph.ops().count('Loop') == 1
    for seed, size in enumerate([traced_at, (16, 24), (17, 24), (16, 60), (40, 47), (33, 60)]):
        graph.check(image(seed, 2, 3, *size), atol=1e-5)


def test_of_any_size_but_not_smaller_than_a_window():
    with RewriteContext({'slide': SlideInference()}), exporting(ExportState(dynamic=True)):
        with pytest.raises(UnsupportedError, match='or give --shape H W'):
            torch.jit.trace(slide(Segmentor((64, 64), (43, 43))), image(0, 1, 3, 63, 150))


@pytest.mark.parametrize(
    ('crop', 'stride'), [((32, 48), (32, 49)), (None, (32, 32)), ((32, 48), None), (32, (32, 32)), ((32, 48), (0, 48))]
)
def test_windows_that_leave_gaps_are_refused_before_tracing(crop, stride):
    with pytest.raises(UnsupportedError, match=r"mode='slide' with crop_size=.* and stride=.*; both must be \(h, w\)"):
        SlideInference().check(Segmentor(crop, stride))


def test_other_windows_are_not_refused():
    SlideInference().check(Segmentor((32, 48), (32, 48)))
    whole = Segmentor((32, 48), (64, 64))
    whole.test_cfg.mode = 'whole'
    SlideInference().check(whole)


@pytest.mark.parametrize(('crop', 'stride'), [(8, 8), (8, 3), (8, 1), (5, 4)])
def test_window_grid(crop, stride):
    for size in range(1, 40):
        grid = WindowGrid.of(size, crop, stride)
        expected, covered = [], np.zeros(size)
        for index in range(max(size - crop + stride - 1, 0) // stride + 1):  # mmseg's own loop
            end = min(index * stride + crop, size)
            expected.append((max(end - crop, 0), end))
            covered[slice(*expected[-1])] += 1
        assert [(start, start + grid.window) for start in grid.starts] == expected
        np.testing.assert_array_equal(grid.counts(), covered)
        assert covered.min() >= 1


@pytest.mark.filterwarnings('ignore:When align_corners=True')
class TestResize:
    @pytest.mark.parametrize(
        'options',
        [
            dict(size=(20, 30), mode='bilinear', align_corners=False),
            dict(size=(20, 30), mode='bilinear', align_corners=True),
            dict(size=torch.Size((5, 4)), mode='bilinear', align_corners=False),
            dict(size=[9, 12], mode='nearest'),
            dict(size=24, mode='nearest'),
            dict(scale_factor=2, mode='bilinear', align_corners=False),
        ],
        ids=str,
    )
    def test_static(self, traced, options):
        def function(x):
            from mmseg.models.utils import resize

            return resize(x, **options)

        graph = traced(function, [image(0, 1, 2, 9, 12)], ['Resize'])
        assert graph.unknown == []
        graph.check(image(1, 1, 2, 9, 12), atol=1e-5)

    @pytest.mark.parametrize('align_corners', [False, True])
    def test_size_of_another_tensor(self, traced, align_corners):
        def function(x, like):
            from mmseg.models.utils import resize

            return resize(x, size=like.shape[2:], mode='bilinear', align_corners=align_corners)

        args = [image(0, 1, 2, 9, 12), image(0, 1, 1, 36, 48)]
        graph = traced(function, args, ['Resize'], [[2, 3], [2, 3]], dynamic=True)
        assert graph.unknown == []
        for small, large in (((9, 12), (36, 48)), ((12, 9), (40, 31)), ((20, 20), (10, 10))):
            graph.check(image(1, 1, 2, *small), image(1, 1, 1, *large), atol=1e-5)

    def test_module_that_calls_it(self, traced):
        from mmseg.models.utils.wrappers import Upsample

        graph = traced(
            Upsample(scale_factor=2, mode='bilinear', align_corners=False), [image(0, 1, 2, 9, 12)], ['Resize']
        )
        graph.check(image(1, 1, 2, 9, 12), atol=1e-5)

    def test_does_not_warn_about_sizes(self):
        from mmdeploy_lite.rewriters.mmseg_segmentors import Resize

        def function():
            from mmseg.models.utils.wrappers import resize

            return resize(image(0, 1, 2, 9, 12), size=(20, 30), mode='bilinear', align_corners=True)

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            expected = function()
            assert len(caught) == 1
            with RewriteContext({'resize': Resize()}):
                assert torch.equal(function(), expected)
            assert len(caught) == 1
