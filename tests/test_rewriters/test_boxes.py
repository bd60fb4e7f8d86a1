"""Decoding, clipping and scaling of boxes against mmdet's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmdeploy_lite.rewriting import RewriteContext


def rois_and_deltas(boxes_of, seed, n, classes=1):
    generator = torch.Generator().manual_seed(seed)
    return boxes_of(seed, n, size=140, low=-20), torch.randn(n, 4 * classes, generator=generator)


def decode(size=None, **kwargs):
    """``size``: Python ints; None takes them from a third tensor, as an export with dynamic sizes does."""

    def function(rois, deltas, image=None):
        from mmdet.models.task_modules.coders.delta_xywh_bbox_coder import delta2bbox

        max_shape = size if image is None else tuple(image.shape[-2:])
        return delta2bbox(rois, deltas, max_shape=max_shape, **kwargs)

    return function


class TestDelta2BBox:
    @pytest.mark.parametrize(
        'options',
        [
            dict(size=(100, 140)),
            dict(size=(100, 140, 3)),
            dict(size=None),
            dict(size=(100, 140), clip_border=False),
            dict(size=(100, 140), means=(0.1, 0, 0, -0.1), stds=(0.1, 0.1, 0.2, 0.2)),
            dict(size=(100, 140), add_ctr_clamp=True, ctr_clamp=5),
        ],
        ids=str,
    )
    def test_static_size(self, traced, boxes_of, options):
        classes = 1 if 'means' in options or options['size'] is None else 3
        graph = traced(decode(**options), rois_and_deltas(boxes_of, 0, 30, classes), ['Delta2BBox'], [[0], [0]])
        assert not {'ScatterND', 'ScatterElements', 'If', 'Loop'} & set(graph.ops())
        boxes = graph.check(*rois_and_deltas(boxes_of, 1, 50, classes), atol=1e-4, rtol=1e-6)[0]
        inside = boxes[:, 0::2].max() <= 140 and boxes[:, 1::2].max() <= 100 and boxes.min() >= 0
        assert inside == (options['size'] is not None and options.get('clip_border', True))

    def test_size_of_the_image_at_hand(self, traced, boxes_of):
        args = (*rois_and_deltas(boxes_of, 0, 30), torch.zeros(1, 1, 100, 140))
        graph = traced(decode(), args, ['Delta2BBox'], [[0], [0], [2, 3]], dynamic=True)
        assert graph.unknown == []
        for height, width in ((100, 140), (140, 100), (64, 200)):
            image = torch.zeros(1, 1, height, width)
            boxes = graph.check(*rois_and_deltas(boxes_of, 1, 50), image, atol=1e-4, rtol=1e-6)[0]
            assert (boxes[:, 0::2].max(), boxes[:, 1::2].max()) == (width, height)

    @pytest.mark.parametrize('classes', [1, 3])
    def test_no_box(self, traced, boxes_of, classes):
        graph = traced(decode((100, 140)), rois_and_deltas(boxes_of, 0, 30, classes), ['Delta2BBox'], [[0], [0]])
        graph.check(*rois_and_deltas(boxes_of, 1, 0, classes))


def from_points(size=None, batched=False):
    def function(points, distance, image=None):
        from mmdet.structures.bbox import distance2bbox

        max_shape = size if image is None else tuple(image.shape[-2:])
        return distance2bbox(points, distance, max_shape)

    return function


def points_and_distances(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, 2, generator=generator) * 120, torch.rand(*shape, 4, generator=generator) * 60


class TestDistance2BBox:
    @pytest.mark.parametrize('size', [(100, 110), (100, 110, 3), torch.Size((100, 110)), None])
    @pytest.mark.parametrize('batch', [(), (2,)])
    def test_one_size(self, traced, size, batch):
        axis = len(batch)
        graph = traced(from_points(size), points_and_distances(0, *batch, 30), ['Distance2BBox'], [[axis], [axis]])
        assert not {'ScatterND', 'ScatterElements', 'If', 'Loop'} & set(graph.ops())
        boxes = graph.check(*points_and_distances(1, *batch, 50))[0]
        assert (boxes[..., 0::2].max() <= 110 and boxes[..., 1::2].max() <= 100) == (size is not None)
        assert graph.check(*points_and_distances(1, *batch, 0))[0].size == 0

    @pytest.mark.parametrize(
        'size', [[(100, 110), (60, 70)], torch.tensor([[100, 110], [60, 70]])], ids=['list', 'tensor']
    )
    def test_a_size_per_image(self, traced, size):
        rewriters = ['Distance2BBox', 'NotInOnnxExport']
        graph = traced(from_points(size), points_and_distances(0, 2, 30), rewriters, [[1], [1]])
        boxes = graph.check(*points_and_distances(1, 2, 50))[0]
        assert boxes[1, :, 0::2].max() == 70

    def test_size_as_a_tensor(self, traced):
        graph = traced(
            from_points(torch.tensor([100, 110])), points_and_distances(0, 2, 30), ['Distance2BBox'], [[1], [1]]
        )
        graph.check(*points_and_distances(1, 2, 50))

    def test_size_of_the_image_at_hand(self, traced):
        args = (*points_and_distances(0, 30), torch.zeros(1, 1, 100, 110))
        graph = traced(from_points(), args, ['Distance2BBox'], [[0], [0], [2, 3]], dynamic=True)
        assert graph.unknown == []
        for height, width in ((100, 110), (60, 90), (150, 40)):
            graph.check(*points_and_distances(1, 50), torch.zeros(1, 1, height, width))


def scale(boxes, factor):
    from mmdet.structures.bbox import scale_boxes

    return scale_boxes(boxes, [1 / factor[0, 0], 1 / factor[0, 1]])


class TestScaleBoxes:
    @pytest.mark.parametrize('columns', [4, 12])
    def test_traced_factors(self, traced, boxes_of, columns):
        boxes = boxes_of(0, 30).repeat(1, columns // 4)
        graph = traced(scale, (boxes, torch.tensor([[2.0, 3.0]])), ['ScaleBoxes'], [[0]])
        assert graph.unknown == []
        graph.check(boxes[:7], torch.tensor([[0.5, 4.0]]), rtol=1e-6)
        graph.check(boxes[:0], torch.tensor([[0.5, 4.0]]))

    def test_mixed_factors(self, traced, boxes_of):
        def function(boxes, factor):
            from mmdet.structures.bbox import scale_boxes

            return scale_boxes(boxes, (factor[0], 0.25))

        graph = traced(function, (boxes_of(0, 30), torch.tensor([2.0])), ['ScaleBoxes'], [[0]])
        graph.check(boxes_of(1, 9), torch.tensor([0.7]), rtol=1e-6)

    def test_python_factors_and_box_objects_go_to_the_original(self, boxes_of):
        from mmdet.structures.bbox import HorizontalBoxes, scale_boxes

        from mmdeploy_lite.rewriters.mmdet_boxes import ScaleBoxes

        boxes = boxes_of(0, 10)
        expected = scale_boxes(boxes, (0.5, 2.0))
        with RewriteContext({'scale': ScaleBoxes()}):
            from mmdet.structures.bbox import scale_boxes as replaced

            assert torch.equal(replaced(boxes, (0.5, 2.0)), expected)
            found = replaced(HorizontalBoxes(boxes.clone()), (0.5, 2.0))
        assert isinstance(found, HorizontalBoxes)
        np.testing.assert_array_equal(found.tensor.numpy(), expected.numpy())
