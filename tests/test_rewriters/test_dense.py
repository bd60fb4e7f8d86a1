"""Post-processing of dense heads and of the RPN, against mmdet's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.structures import InstanceData
from scipy.optimize import linear_sum_assignment

from mmdeploy_lite.export import ExportState, exporting
from mmdeploy_lite.registry import REWRITERS
from mmdeploy_lite.rewriters.mmdet_dense import BBoxPostProcess
from mmdeploy_lite.rewriting import RewriteContext, build_rewriters

NMS = dict(type='nms', iou_threshold=0.5)
BASE = ['BatchedNMS', 'ScaleBoxes', 'NotInOnnxExport', 'Squeeze']
POST = ['BBoxPostProcess', *BASE]


def rows(answer):
    """Boxes, scores and labels side by side."""
    return np.concatenate([value.reshape(len(value), 4 if value.ndim == 2 else 1) for value in answer], axis=1)


def assert_same_rows(answer, expected, atol):
    """In any order: that of equal scores is free."""
    assert answer.shape == expected.shape
    if len(answer):
        distance = np.abs(answer[:, None] - expected[None]).max(axis=2)
        assert distance[linear_sum_assignment(distance)].max() <= atol


def compare(graph, *args, atol=1e-4):
    expected = rows(graph.original(*args))
    for answer in (graph.eager(*args), graph.run(*args)):
        assert_same_rows(rows(answer), expected, atol)
    return expected


def post_process(cfg, rescale=True, factors=False):
    def function(boxes, scores, labels, scale_factor, score_factors):
        from mmdet.models.dense_heads.base_dense_head import BaseDenseHead

        results = InstanceData(bboxes=boxes, scores=scores, labels=labels)
        if factors:
            results.score_factors = score_factors
        meta = dict(scale_factor=scale_factor[0])
        if not torch.jit.is_tracing():  # the original takes Python numbers
            meta = dict(scale_factor=tuple(scale_factor[0].tolist()))
        results = BaseDenseHead._bbox_post_process(None, results, ConfigDict(cfg), rescale=rescale, img_meta=meta)
        return results.bboxes, results.scores, results.labels

    return function


def candidates(boxes_of, seed, n, scale=(2.0, 0.5)):
    generator = torch.Generator().manual_seed(seed)
    scores, labels = torch.rand(n, generator=generator), torch.randint(3, (n,), generator=generator)
    return boxes_of(seed, n), scores, labels, torch.tensor([scale]), torch.rand(n, generator=generator)


class TestBBoxPostProcess:
    @pytest.mark.parametrize(
        ('min_bbox_size', 'rescale', 'factors'),
        [(-1, True, True), (0, False, False), (10, True, False), (10, False, True), (10, True, True)],
    )
    def test_small_boxes_go_after_rescaling(self, traced, boxes_of, min_bbox_size, rescale, factors):
        cfg = dict(nms=NMS, max_per_img=100, min_bbox_size=min_bbox_size)
        large = list(candidates(boxes_of, 0, 30))
        large[0] = torch.cat([large[0][:, :2], large[0][:, 2:] + 200], dim=1)  # traced on an image with only large ones
        graph = traced(post_process(cfg, rescale, factors), large, POST, [[0], [0], [0], [], [0]])
        assert graph.unknown == []
        for seed, scale in ((1, (2.0, 0.5)), (2, (0.3, 1.0))):
            kept = compare(graph, *candidates(boxes_of, seed, 80, scale))
            sides = kept[:, 2:4] - kept[:, :2]
            assert (sides.min() < 10) == (min_bbox_size < 10)

    def test_all_boxes_are_small(self, both, boxes_of):
        function = post_process(dict(nms=NMS, max_per_img=100, min_bbox_size=12))
        for scale in ((0.1, 0.1), (9.0, 9.0)):  # both on large ones, and on small ones alone
            graph = both(function, candidates(boxes_of, 0, 30, scale), POST, [[0], [0], [0], [], [0]])
            assert len(compare(graph, *candidates(boxes_of, 1, 50, (0.1, 0.1)))) > 10
            assert len(compare(graph, *candidates(boxes_of, 1, 50, (9.0, 9.0)))) == 0

    @pytest.mark.parametrize(('max_num', 'max_per_img'), [(-1, 7), (7, -1), (5, 9), (9, 5)])
    def test_limits(self, both, boxes_of, max_num, max_per_img):
        cfg = dict(nms=dict(NMS, max_num=max_num), max_per_img=max_per_img)
        graph = both(post_process(cfg), candidates(boxes_of, 0, 30), POST, [[0], [0], [0], [], [0]])
        compare(graph, *candidates(boxes_of, 1, 80))
        assert cfg == dict(nms=dict(NMS, max_num=max_num), max_per_img=max_per_img)  # the model's own config

    def test_config_is_not_changed(self, boxes_of):
        cfg = ConfigDict(nms=dict(NMS), max_per_img=5, min_bbox_size=3)
        results = InstanceData(**dict(zip(('bboxes', 'scores', 'labels'), candidates(boxes_of, 0, 9), strict=False)))
        state = ExportState()
        with RewriteContext({'post': BBoxPostProcess()}), exporting(state):
            from mmdet.models.dense_heads.base_dense_head import BaseDenseHead

            BaseDenseHead._bbox_post_process(None, results, cfg, with_nms=False, img_meta={})
        assert cfg == dict(nms=NMS, max_per_img=5, min_bbox_size=3)
        assert state.rejected_pending  # without NMS, the wrapper drops them


SIZES = [(8, 12), (4, 6)]


@pytest.fixture(scope='module')
def rpn():
    from mmdet.models.dense_heads import RPNHead

    def make(use_sigmoid=True, **test_cfg):
        head = RPNHead(
            in_channels=4,
            feat_channels=4,
            anchor_generator=dict(type='AnchorGenerator', scales=[4], ratios=[0.5, 1.0, 2.0], strides=[8, 16]),
            bbox_coder=dict(type='DeltaXYWHBBoxCoder'),
            loss_cls=dict(type='mmdet.CrossEntropyLoss', use_sigmoid=use_sigmoid),
            test_cfg=ConfigDict(dict(dict(nms_pre=50, max_per_img=30, nms=dict(NMS), min_bbox_size=0), **test_cfg)),
        )
        return head.eval()

    from mmdeploy_lite.loading import use_scope

    use_scope('mmdet')
    return make


def maps(seed, *channels, sizes=SIZES, scale=2.0):
    """Head outputs, level by level: per level one map for each number of channels."""
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(1, n, *size, generator=generator) for n in channels for size in sizes]


def propose(head, cfg=None):
    def function(*outputs):
        count = len(outputs) // 2
        sizes = [output.shape[-2:] for output in outputs[:count]]
        meta = dict(img_shape=(sizes[0][0] * 8, sizes[0][1] * 8), scale_factor=(1.0, 1.0))
        (results,) = head.predict_by_feat(
            list(outputs[:count]), list(outputs[count:]), batch_img_metas=[meta], cfg=cfg, rescale=False
        )
        return results.bboxes, results.scores, results.labels

    return function


RPN = ['RPNPreselect', 'RPNPostProcess', 'Delta2BBox', *BASE]


class TestRPN:
    @pytest.mark.parametrize(
        ('use_sigmoid', 'test_cfg'),
        [
            (True, dict()),
            (False, dict()),
            (False, dict(nms_pre=1000, max_per_img=5)),
            (True, dict(nms_pre=-1, min_bbox_size=30)),
        ],
        ids=str,
    )
    def test_against_the_original(self, traced, rpn, use_sigmoid, test_cfg):
        head = rpn(use_sigmoid, **test_cfg)
        channels = (3 if use_sigmoid else 6, 12)
        axes = [[2, 3]] * 4
        small = [(3, 4), (2, 2)]  # traced where every level has fewer anchors than nms_pre
        graph = traced(propose(head), maps(0, *channels, sizes=small), RPN, axes, dynamic=True)
        assert graph.unknown == []
        # other numbers of anchors per level: fewer than nms_pre, and more, on either
        for seed, sizes in ((1, SIZES), (2, small), (3, [(16, 20), (8, 10)])):
            proposals = compare(graph, *maps(seed, *channels, sizes=sizes), atol=1e-3)
            assert (seed == 2 or len(proposals)) and len(proposals) <= head.test_cfg.max_per_img
        if head.test_cfg.nms_pre > 0:
            assert 'Sort' not in graph.ops()

    def test_levels_do_not_suppress_each_other(self, traced, rpn):
        head = rpn(nms=dict(NMS, iou_threshold=0.05), max_per_img=1000)
        graph = traced(propose(head), maps(0, 3, 12), RPN, [[2, 3]] * 4, dynamic=True)
        together = compare(graph, *maps(1, 3, 12), atol=1e-3)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(head.test_cfg.nms, 'class_agnostic', True)
            assert len(rows(graph.original(*maps(1, 3, 12)))) < len(together)

    def test_config_given_instead_of_the_heads(self, traced, rpn):
        cfg = ConfigDict(nms_pre=7, max_per_img=9, nms=dict(NMS), min_bbox_size=0)
        graph = traced(propose(rpn(), cfg), maps(0, 3, 12), RPN, [[2, 3]] * 4, dynamic=True)
        assert len(compare(graph, *maps(1, 3, 12), atol=1e-3)) <= 9

    def test_no_proposal_at_run_time(self, both, rpn):
        graph = both(propose(rpn(min_bbox_size=70)), maps(0, 3, 12), RPN, [[2, 3]] * 4, dynamic=True)
        small = maps(1, 3, 12, scale=0.01)
        answer = graph.run(*small)
        assert [value.shape for value in answer] == [(0, 4), (0,), (0,)]
        assert len(graph.original(*small)[0]) == 0


@pytest.fixture(scope='module')
def yolox():
    from mmdet.models.dense_heads import YOLOXHead

    def make(**test_cfg):
        test_cfg = ConfigDict(dict(dict(score_thr=0.2, nms=dict(NMS)), **test_cfg))
        return YOLOXHead(3, 4, feat_channels=4, stacked_convs=1, strides=(8, 16), test_cfg=test_cfg).eval()

    return make


def predict_yolox(head):
    def function(scale_factor, *outputs):
        count = len(outputs) // 3
        factor = scale_factor[0] if torch.jit.is_tracing() else tuple(scale_factor[0].tolist())
        meta = dict(scale_factor=factor)
        parts = [list(outputs[index * count : (index + 1) * count]) for index in range(3)]
        (results,) = head.predict_by_feat(*parts, batch_img_metas=[meta], rescale=True)
        return results.bboxes, results.scores, results.labels

    return function


YOLOX = ['YOLOXPredict', 'YOLOXPostProcess', *BASE]
SCALE = torch.tensor([[2.0, 0.5]])


class TestYOLOX:
    @pytest.mark.parametrize('test_cfg', [dict(), dict(score_thr=0.6, nms=dict(NMS, max_num=4))], ids=str)
    def test_against_the_original(self, traced, yolox, test_cfg):
        axes = [[], *[[2, 3]] * 6]
        graph = traced(predict_yolox(yolox(**test_cfg)), [SCALE, *maps(0, 3, 4, 1)], YOLOX, axes, dynamic=True)
        assert graph.unknown == []
        assert graph.ops().count('NonMaxSuppression') == 1
        for seed, sizes in ((1, SIZES), (2, [(3, 4), (2, 2)]), (3, [(16, 20), (8, 10)])):
            compare(graph, torch.tensor([[0.7, 1.9]]), *maps(seed, 3, 4, 1, sizes=sizes), atol=2e-3)

    def test_one_label_per_prior_and_no_cap(self, traced, yolox):
        head = yolox(score_thr=0.0, nms=dict(NMS, iou_threshold=1.0))
        graph = traced(predict_yolox(head), [SCALE, *maps(0, 3, 4, 1)], YOLOX, [[], *[[2, 3]] * 6], dynamic=True)
        sizes = [(30, 40), (15, 20)]
        assert len(compare(graph, SCALE, *maps(1, 3, 4, 1, sizes=sizes), atol=2e-3)) == 30 * 40 + 15 * 20

    def test_traced_where_nothing_is_found_and_run_where_nothing_is_found(self, traced, yolox):
        quiet = [SCALE, *maps(0, 3, 4, 1)]
        quiet[5:] = [value - 50 for value in quiet[5:]]  # objectness
        graph = traced(predict_yolox(yolox()), quiet, YOLOX, [[], *[[2, 3]] * 6], dynamic=True)
        assert len(compare(graph, SCALE, *maps(1, 3, 4, 1))) > 5
        assert [value.shape for value in graph.run(*quiet)] == [(0, 4), (0,), (0,)]

    def test_score_equal_to_the_threshold_is_kept(self, yolox):
        head = yolox(score_thr=0.25)
        outputs = [torch.zeros(1, channels, *size) for channels in (3, 4, 1) for size in SIZES]  # every score is 0.25
        expected = predict_yolox(head)(SCALE, *outputs)
        assert len(expected[0]) > 0
        rewriters = build_rewriters({name: {'type': name} for name in YOLOX}, REWRITERS)
        with RewriteContext(rewriters):
            answer = predict_yolox(head)(SCALE, *outputs)
        assert torch.equal(answer[1], expected[1]) and torch.equal(answer[2], expected[2])
        assert head.test_cfg.score_thr == 0.25 and 'one_too_many' not in head.test_cfg
