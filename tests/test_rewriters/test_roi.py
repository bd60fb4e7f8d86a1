"""RoIAlign, the RoI extractor and mask pasting against mmcv's and mmdet's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict

from mmdeploy_lite.errors import UnsupportedError
from mmdeploy_lite.rewriters.mmcv_ops import RoIAlign
from mmdeploy_lite.rewriters.mmdet_roi import FCNMaskPaste, RoIHeadPredict, paste_masks
from mmdeploy_lite.rewriting import RewriteContext

SIZE = 64  # of the image, in pixels


def feature_map(seed, batch=2, channels=3, size=SIZE // 4):
    return torch.randn(batch, channels, size, size, generator=torch.Generator().manual_seed(seed))


def rois(seed, n, batch=2):
    """Random ones, and after them those that implementations differ in: borders, no area, outside."""
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(n, 2, generator=generator) * SIZE * 0.8
    boxes = torch.cat([corner, corner + torch.rand(n, 2, generator=generator) * SIZE * 0.6], dim=1)
    special = torch.tensor(
        [
            [0, 0, SIZE, SIZE],
            [0, 0, 0, 0],
            [SIZE, SIZE, SIZE, SIZE],
            [10, 10, 10, 40],
            [10, 20.5, 40, 20.5],
            [-8, -8, 8, 8],
            [SIZE - 4, SIZE - 4, SIZE + 30, SIZE + 30],
            [-40, -40, -20, -20],
            [SIZE + 20, 10, SIZE + 30, 20],
            [7.5, 7.5, 8.5, 8.5],
        ]
    )
    boxes = torch.cat([boxes, special.float()]) if n else boxes
    index = torch.randint(batch, (len(boxes), 1), generator=generator).float()
    return torch.cat([index, boxes], dim=1)


def align(sampling_ratio, aligned, output_size=7, spatial_scale=0.25):
    def function(features, rois):
        from mmcv.ops.roi_align import roi_align

        return roi_align(features, rois, output_size, spatial_scale, sampling_ratio, 'avg', aligned)

    return function


class TestRoIAlign:
    @pytest.mark.parametrize('aligned', [True, False])
    @pytest.mark.parametrize('sampling_ratio', [-1, 0, 2])
    def test_every_mode(self, traced, sampling_ratio, aligned):
        graph = traced(align(sampling_ratio, aligned), [feature_map(0), rois(0, 5)], ['RoIAlign'], [[], [0]])
        assert graph.ops().count('RoiAlign') == 1
        assert graph.unknown == []
        pooled = graph.check(feature_map(1), rois(1, 40), atol=1e-5)[0]
        assert np.ptp(pooled) > 1
        assert graph.check(feature_map(1), rois(1, 0))[0].shape == (0, 3, 7, 7)

    def test_every_roi_takes_its_own_image(self, traced):
        graph = traced(align(2, True), [feature_map(0), rois(0, 5)], ['RoIAlign'], [[], [0]])
        box = torch.tensor([8.0, 8, 40, 40])
        both = torch.stack([torch.cat([torch.tensor([index]), box]) for index in (1.0, 0.0, 1.0)])
        answer = graph.check(feature_map(1), both, atol=1e-5)[0]
        np.testing.assert_array_equal(answer[0], answer[2])
        assert np.abs(answer[0] - answer[1]).max() > 0.1

    @pytest.mark.parametrize('output_size', [(7, 3), [2, 5], 1])
    def test_output_sizes_and_dynamic_features(self, traced, output_size):
        args = [feature_map(0), rois(0, 5)]
        function = align(0, True, output_size, spatial_scale=1 / 8)
        graph = traced(function, args, ['RoIAlign'], [[2, 3], [0]], dynamic=True)
        graph.check(feature_map(1, size=11), rois(1, 20), atol=1e-5)

    def test_layer_of_a_model(self, traced):
        from mmcv.ops import RoIAlign as Layer

        graph = traced(Layer(5, 0.25, 0), [feature_map(0), rois(0, 5)], ['RoIAlign'], [[], [0]])
        graph.check(feature_map(1), rois(1, 20), atol=1e-5)

    def test_maximum_is_refused(self):
        from mmcv.ops.roi_align import roi_align as original

        assert original(feature_map(0), rois(0, 2), 7, 0.25, 2, 'max', True).shape == (12, 3, 7, 7)
        with RewriteContext({'roi_align': RoIAlign()}), pytest.raises(UnsupportedError, match="pool_mode='max'"):
            from mmcv.ops.roi_align import roi_align

            roi_align(feature_map(0), rois(0, 2), 7, 0.25, 2, 'max', True)


def extractor(levels, **layer):
    from mmdet.models.roi_heads.roi_extractors import SingleRoIExtractor

    layer = dict(type='RoIAlign', output_size=7, sampling_ratio=0, **layer)
    strides = [4 * 2**level for level in range(levels)]
    return SingleRoIExtractor(layer, out_channels=3, featmap_strides=strides, finest_scale=16).eval()


def pyramid(seed, levels):
    return [feature_map(seed + level, size=SIZE // (4 * 2**level)) for level in range(levels)]


class TestSingleRoIExtractor:
    def trace(self, traced, levels, rois, **kwargs):
        module = extractor(levels)

        def function(rois, *feats):
            return module(tuple(feats), rois, **kwargs)

        return traced(function, [rois, *pyramid(0, levels)], ['SingleRoIExtractor', 'RoIAlign'], [[0]])

    @pytest.mark.parametrize('levels', [1, 3, 4])
    @pytest.mark.parametrize('factor', [None, 1.5])
    def test_levels(self, traced, levels, factor):
        graph = self.trace(traced, levels, rois(0, 20), roi_scale_factor=factor)
        assert graph.unknown == []
        assert graph.ops().count('RoiAlign') == levels
        for seed, n in ((1, 60), (2, 3), (3, 0)):
            graph.check(rois(seed, n), *pyramid(seed, levels), atol=1e-5)

    def test_level_without_a_roi(self, both):
        """While tracing, and at run time."""
        small = torch.tensor([[0.0, 5, 5, 15, 17], [1, 30, 30, 44, 41]])
        large = torch.tensor([[1.0, 0, 0, 60, 64], [0, 2, 2, 64, 60], [1, 10, 1, 60, 60]])
        for first in (small, large):
            graph = self.trace(both, 3, first)
            assert graph.ops().count('RoiAlign') == 3
            for second in (small, large, torch.cat([large, small, large])):
                graph.check(second, *pyramid(5, 3), atol=1e-5)

    def test_rows_keep_their_order(self, both):
        graph = self.trace(both, 3, rois(0, 20))
        many = rois(4, 80)
        many = many[torch.randperm(len(many), generator=torch.Generator().manual_seed(0))]
        from_graph = graph.check(many, *pyramid(5, 3), atol=1e-5)[0]
        one_by_one = np.concatenate([graph.run(row[None], *pyramid(5, 3))[0] for row in many[:20]])
        np.testing.assert_allclose(from_graph[:20], one_by_one, atol=1e-6)


BOXES = torch.tensor(
    [
        [10.0, 20, 40, 50],
        [3.3, 4.7, 61.2, 38.9],
        [-10, -12, 20, 30],  # partly outside, at each corner
        [50, 30, 95, 70],
        [-30, 20, 110, 30],  # wider than the image
        [20, 20, 20.4, 20.3],  # within one pixel
        [20.6, 10, 21.2, 60],
        [30, 10, 30, 40],  # no width
        [30.5, 10, 30.5, 40],  # no width, through pixel centers
        [10, 25, 40, 25],
        [12.5, 33.5, 12.5, 33.5],  # neither width nor height
        [0, 0, 0, 0],
        [70, 50, 70, 50],
        [0, 0, 80, 60],
    ]
)
OUTSIDE = torch.tensor([[-20.0, -20, -5, -5], [90, 70, 100, 80], [10, -20, 30, -10], [100, 10, 120, 30]])


def reaching(boxes, height, width):
    """Those that the original pastes; it fails for a box that ends beside the image."""
    low, high = (boxes[:, :2].floor() - 1).clamp(min=0), boxes[:, 2:].ceil() + 1
    return boxes[((high >= 0) & (low <= torch.tensor([width, height])) & (high >= low)).all(dim=1)]


def original_paste(masks, boxes, height, width):
    """What mmdet does on a CPU: one mask after the other, each within a pixel of its box."""
    from mmdet.models.roi_heads.mask_heads.fcn_mask_head import _do_paste_mask

    image = torch.zeros(len(masks), height, width)
    for index in range(len(masks)):
        one = slice(index, index + 1)
        pasted, place = _do_paste_mask(masks[one, None], boxes[one], height, width, skip_empty=True)
        image[(one, *place)] = pasted
    return image


class TestPasteMasks:
    @pytest.mark.parametrize('cells', [(28, 28), (14, 7), (1, 1)])
    @pytest.mark.parametrize('size', [(60, 80), (33, 47)])
    def test_against_the_original(self, cells, size):
        boxes = reaching(BOXES, *size)
        assert len(boxes) >= len(BOXES) - 2
        masks = torch.rand(len(boxes), *cells, generator=torch.Generator().manual_seed(0))
        expected = original_paste(masks, boxes, *size)
        pasted = paste_masks(masks, boxes, *size)
        assert pasted.shape == expected.shape
        clear = ~((expected - 0.5).abs() < 1e-4)  # also where no width divides to what is not a number
        assert torch.equal((pasted >= 0.5)[clear], (expected >= 0.5)[clear])
        finite = torch.isfinite(expected) & torch.isfinite(pasted)
        assert finite.float().mean() > 0.99
        torch.testing.assert_close(pasted[finite], expected[finite], atol=1e-5, rtol=0)

    def test_random_boxes(self):
        generator = torch.Generator().manual_seed(1)
        corner = torch.rand(200, 2, generator=generator) * 100 - 20
        boxes = torch.cat([corner, corner + torch.rand(200, 2, generator=generator) ** 3 * 70], dim=1)
        boxes = reaching(boxes, 60, 80)
        assert len(boxes) > 100
        masks = torch.rand(len(boxes), 28, 28, generator=generator)
        torch.testing.assert_close(
            paste_masks(masks, boxes, 60, 80), original_paste(masks, boxes, 60, 80), atol=2e-5, rtol=0
        )

    def test_boxes_beside_the_image(self):
        pasted = paste_masks(torch.ones(len(OUTSIDE), 28, 28), OUTSIDE, 60, 80)
        assert torch.equal(pasted, torch.zeros(len(OUTSIDE), 60, 80))

    def test_none(self):
        assert paste_masks(torch.zeros(0, 28, 28), torch.zeros(0, 4), 60, 80).shape == (0, 60, 80)


class Head:
    class_agnostic = False

    def __init__(self, class_agnostic=False):
        self.class_agnostic = class_agnostic


def predict(head, rescale, threshold=0.5, **kwargs):
    def function(mask_preds, boxes, labels, scale_factor, ori_shape):
        from mmdet.models.roi_heads.mask_heads import FCNMaskHead

        meta = dict(scale_factor=scale_factor, ori_shape=(ori_shape[0], ori_shape[1]))
        if not torch.jit.is_tracing():  # the original takes Python numbers
            meta = dict(scale_factor=tuple(scale_factor.tolist()), ori_shape=tuple(ori_shape.tolist()))
        boxes = boxes.clone()
        cfg = ConfigDict(mask_thr_binary=threshold)
        masks = FCNMaskHead._predict_by_feat_single(head, mask_preds, boxes, labels, meta, cfg, rescale, **kwargs)
        return masks, boxes  # which are rescaled in place

    return function


def mask_inputs(seed, n, classes=3, scale=(2.0, 1.5), size=(60, 80)):
    generator = torch.Generator().manual_seed(seed)
    image = torch.tensor([size[1] * scale[0], size[0] * scale[1]])  # (w, h) that boxes are in
    corner = torch.rand(n, 2, generator=generator) * image * 0.9
    boxes = torch.cat([corner, corner + torch.rand(n, 2, generator=generator) * image * 0.6], dim=1)
    labels = torch.randint(classes, (n,), generator=generator)
    masks = torch.nn.functional.interpolate(
        torch.randn(n, classes, 4, 4, generator=generator), (28, 28), mode='bilinear'
    )
    return masks * 3, boxes, labels, torch.tensor(scale), torch.tensor(size)


class TestFCNMaskPaste:
    @pytest.mark.parametrize('rescale', [True, False])
    @pytest.mark.parametrize('class_agnostic', [True, False])
    def test_against_the_original(self, traced, rescale, class_agnostic):
        function = predict(Head(class_agnostic), rescale)
        classes = 1 if class_agnostic else 3
        graph = traced(function, mask_inputs(0, 5, classes), ['FCNMaskPaste'], [[0], [0], [0]])
        for seed, n, scale, size in ((1, 30, (2.0, 1.5), (60, 80)), (2, 1, (0.7, 3.1), (47, 33))):
            args = mask_inputs(seed, n, classes, scale, size)
            expected = graph.original(*args)
            for answer in (graph.eager(*args), graph.run(*args)):
                assert answer[0].shape == expected[0].shape and answer[0].dtype == bool
                assert (answer[0] != expected[0]).sum() <= 2  # a value on the threshold
                np.testing.assert_allclose(answer[1], expected[1], rtol=1e-6)
            assert 0.01 < expected[0].mean() < 0.9
        empty = graph.run(*mask_inputs(1, 0, classes))
        assert empty[0].shape == ((0, 60, 80) if rescale else (0, 90, 160))

    def test_masks_that_are_probabilities_already(self):
        args = mask_inputs(0, 6)
        args = (args[0].sigmoid(), *args[1:])
        function = predict(Head(), True, activate_map=True)
        expected = function(*args)[0]
        with RewriteContext({'paste': FCNMaskPaste()}):
            assert torch.equal(function(*args)[0], expected)
        assert expected.any()

    def test_grey_masks_are_refused(self):
        function = predict(Head(), True, threshold=-1)
        assert function(*mask_inputs(0, 5))[0].dtype == torch.uint8
        with RewriteContext({'paste': FCNMaskPaste()}), pytest.raises(UnsupportedError, match='mask_thr_binary is -1'):
            function(*mask_inputs(0, 5))


class TestRoIHeadPredict:
    @staticmethod
    def origin(head, x, rpn_results_list, batch_data_samples, rescale=False, **kwargs):
        assert all(len(level) == len(rpn_results_list) == len(batch_data_samples) for level in x)
        return [(head, [level.sum().item() for level in x], rpn_results_list, batch_data_samples, rescale, kwargs)]

    def test_one_image_after_the_other(self):
        levels = (feature_map(0, batch=3), feature_map(1, batch=3, size=8))
        args = ('head', levels, ['p0', 'p1', 'p2'], ['s0', 's1', 's2'])
        results = RoIHeadPredict()(self.origin, *args, rescale=True, extra=1)
        for index, result in enumerate(results):
            sums = [level[index].sum().item() for level in levels]
            assert result[1] == pytest.approx(sums)
            assert (result[0], *result[2:]) == ('head', [f'p{index}'], [f's{index}'], True, dict(extra=1))
        assert len(results) == 3

    def test_one_image_goes_to_the_original_as_it_is(self):
        levels = (feature_map(0, batch=1),)
        (result,) = RoIHeadPredict()(self.origin, 'head', levels, ['p0'], ['s0'])
        assert result[2:] == (['p0'], ['s0'], False, {})


class TestBBoxHeadForward:
    @pytest.mark.parametrize('with_avg_pool', [True, False])
    def test_any_number_of_rois(self, both, with_avg_pool):
        from mmdet.models.roi_heads.bbox_heads.bbox_head import BBoxHead

        torch.manual_seed(0)
        head = BBoxHead(num_classes=3, in_channels=4, roi_feat_size=2, with_avg_pool=with_avg_pool).eval()
        head.requires_grad_(False)
        shape = (4, 2, 2) if with_avg_pool else (16,)

        def function(x):
            return BBoxHead.forward(head, x)

        graph = both(function, [torch.rand(5, *shape)], ['BBoxHeadForward'], [[0]])
        assert graph.unknown == [] and head.with_avg_pool == with_avg_pool
        for count in (5, 1, 0, 9):
            graph.check(torch.rand(count, *shape), atol=1e-6)


class TestBBoxHeadPredict:
    @staticmethod
    def head(**kwargs):
        from mmdet.models.roi_heads.bbox_heads import BBoxHead

        return BBoxHead(num_classes=3, in_channels=4, roi_feat_size=1, with_avg_pool=False, **kwargs).eval()

    @staticmethod
    def function(head, cfg):
        cfg = ConfigDict(cfg)

        def predict(rois, cls_score, bbox_pred):
            meta = dict(img_shape=(SIZE, SIZE), scale_factor=(2.0, 0.5))
            results = head._predict_by_feat_single(
                roi=rois, cls_score=cls_score, bbox_pred=bbox_pred, img_meta=meta, rescale=True, rcnn_test_cfg=cfg
            )
            return results.bboxes, results.scores, results.labels

        return predict

    @staticmethod
    def inputs(seed, n, classes=3, scores=4):
        generator = torch.Generator().manual_seed(seed)
        cls_score = 2 * torch.randn(n, scores, generator=generator)
        return rois(seed, 40, batch=1)[:n], cls_score, torch.randn(n, 4 * classes, generator=generator)

    REWRITERS = ('BBoxHeadPredict', 'MulticlassNMS', 'BatchedNMS', 'Delta2BBox', 'ScaleBoxes', 'NotInOnnxExport')
    CFG = dict(score_thr=0.05, nms=dict(type='nms', iou_threshold=0.5), max_per_img=100)

    @pytest.mark.parametrize('agnostic', [False, True])
    @pytest.mark.parametrize('score_thr', [0.05, 0.0])
    def test_against_the_original(self, traced, agnostic, score_thr):
        """Every class keeps its own decoded box; more RoIs, fewer, and none."""
        classes = 1 if agnostic else 3
        function = self.function(self.head(reg_class_agnostic=agnostic), dict(self.CFG, score_thr=score_thr))
        graph = traced(function, self.inputs(0, 20, classes), list(self.REWRITERS), [[0]] * 3)
        assert graph.unknown == []
        for seed, n in ((1, 40), (2, 3)):
            assert len(graph.check(*self.inputs(seed, n, classes), atol=1e-4)[0]) > 2
        graph.check(*self.inputs(3, 0, classes))

    def test_custom_activation(self, traced):
        """Seesaw loss scores objectness beside the classes."""
        loss = dict(type='mmdet.SeesawLoss', num_classes=3)
        graph = traced(
            self.function(self.head(loss_cls=loss), self.CFG),
            self.inputs(0, 20, scores=5),
            list(self.REWRITERS),
            [[0]] * 3,
        )
        assert len(graph.check(*self.inputs(1, 40, scores=5), atol=1e-4)[0]) > 2
        assert [len(value) for value in graph.run(*self.inputs(1, 0, scores=5))] == [0, 0, 0]
