"""Numbers of candidates, anchors that the network makes, and what works on candidates in place of NMS."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict

from mmdeploy_lite.export.operators import pretend_some
from mmdeploy_lite.rewriters.candidates import Limit, LimitCandidates


class Head:
    test_cfg = ConfigDict(nms_pre=7, max_per_img=5)

    def select(self, scores, cfg=None):
        cfg = self.test_cfg if cfg is None else cfg
        if 0 < cfg.nms_pre < scores.shape[0]:
            scores = scores[scores.topk(cfg.nms_pre)[1]]
        if cfg.nms_pre > 0 and scores.shape[0] > cfg.nms_pre:
            scores, order = scores.sort(descending=True)
            scores = scores[: cfg.nms_pre]
        return scores.topk(min(cfg.max_per_img, scores.shape[0]))[0]


def test_limit_compares():
    limit = Limit(3)
    assert 0 < limit < 4 and limit > 2 and not limit > 3 and not limit < 3 and [1, 2, 3, 4][:limit] == [1, 2, 3]
    size = torch.tensor(2)
    assert size > limit and limit < size and min(limit, size) is limit  # as if there were more


def test_selection_of_more_and_fewer_than_there_are(traced):
    class Limited(LimitCandidates):
        limits = ('nms_pre', 'max_per_img')

    limited = Limited()

    def function(scores):
        return limited(Head.select, Head(), scores) if torch.jit.is_tracing() else Head().select(scores)

    graph = traced(function, [torch.rand(20)], ['Topk'], [[0]])
    assert graph.unknown == []
    for n in (20, 7, 6, 5, 2):
        graph.check(torch.rand(n))


@pytest.mark.parametrize('strides', [[4, 8], [(4, 6), (8, 7)]])
def test_valid_flags(traced, strides):
    from mmdet.models.task_modules import AnchorGenerator

    generator = AnchorGenerator(strides=strides, ratios=[0.5, 1.0], scales=[8])

    def function(size, first, second):
        sizes = [first.shape, second.shape]
        shape = (size[0], size[1])
        if not torch.jit.is_tracing():
            shape = tuple(size.tolist())
        return torch.cat(generator.valid_flags(sizes, shape, device='cpu'))

    def args(height, width, *sizes):
        return torch.tensor([height, width]), *(torch.zeros(size) for size in sizes)

    graph = traced(function, args(30, 40, (10, 10), (5, 6)), ['ValidFlags'], [[], [0, 1], [0, 1]])
    assert graph.unknown == []
    for case in ((30, 40, (10, 10), (5, 6)), (31, 50, (9, 13), (4, 9)), (8, 8, (3, 3), (2, 2))):
        graph.check(*args(*case))


def test_nothing_above_the_threshold_while_tracing(traced):
    def function(values):
        mask = pretend_some(values) > 0
        if mask.sum() == 0:
            return values[:0]
        return values[mask]

    graph = traced(function, [torch.full((5,), -1.0)], [], [[0]])
    assert len(graph.run(torch.tensor([-1.0, 2.0, 3.0]))[0]) == 2 and len(graph.run(torch.full((4,), -2.0))[0]) == 0


def test_score_voting(traced, boxes_of):
    from mmdet.models.dense_heads.paa_head import PAAHead

    head = type('Head', (), dict(cls_out_channels=4))()

    def function(dets, labels, boxes, scores):
        return PAAHead.score_voting(head, dets, labels, boxes, scores, 0.3)

    def args(seed, found, n):
        generator = torch.Generator().manual_seed(seed)
        boxes, scores = boxes_of(seed, n), torch.rand(n, 5, generator=generator)
        labels = torch.randint(4, (found,), generator=generator)
        scores[torch.arange(found), labels] = 0.9
        dets = torch.cat([boxes[:found], torch.rand(found, 1, generator=generator)], dim=1)
        return dets, labels, boxes, scores

    graph = traced(function, args(0, 5, 30), ['ScoreVoting'], [[0], [0], [0], [0]])
    assert graph.unknown == []
    for seed, found, n in ((1, 12, 60), (2, 1, 5)):
        graph.check(*args(seed, found, n), atol=1e-3)
    dets, labels, boxes, scores = args(3, 3, 9)
    assert len(graph.run(dets[:0], labels[:0], boxes, scores)[0]) == 0


def test_set_nms(both, boxes_of):
    from mmdet.models.roi_heads.bbox_heads import MultiInstanceBBoxHead

    def function(boxes, scores):
        return MultiInstanceBBoxHead.set_nms(boxes, scores, 0.2, 0.4, 10)

    def args(seed, n):
        generator = torch.Generator().manual_seed(seed)
        proposal = torch.arange(n).div(2, rounding_mode='floor').float()
        return torch.cat([boxes_of(seed, n), proposal[:, None]], dim=1), torch.rand(n, generator=generator)

    graph = both(function, args(0, 20), ['SetNMS'], [[0], [0]])
    assert graph.unknown == []
    sizes = [len(graph.check(*args(seed, n))[0]) for seed, n in ((1, 30), (2, 12), (3, 2))]
    assert sizes[0] == 10 and sizes[1] < 10


class TestDistinctQueries:
    @staticmethod
    def function(query, boxes, mask):
        from mmdet.models.layers.transformer.ddq_detr_layers import DDQTransformerDecoder

        cache = dict(
            dis_query_info=[0, query.shape[1]] if not torch.jit.is_tracing() else [0, 12],
            cls_branches=[torch.nn.Identity()],
            num_heads=2,
            dqs_cfg=dict(type='nms', iou_threshold=0.5),
            distinct_query_mask=[],
        )
        decoder = type('Decoder', (), dict(cache_dict=cache))()
        mask = DDQTransformerDecoder.select_distinct_queries(decoder, boxes, query, mask > 0, 0)
        return mask, cache['distinct_query_mask'][0]

    @staticmethod
    def args(seed, first):
        generator = torch.Generator().manual_seed(seed)
        query = torch.randn(2, 12, 3, generator=generator)
        centers = torch.rand(2, 4, 2, generator=generator).repeat(1, 3, 1)
        boxes = torch.cat([centers + torch.rand(2, 12, 2, generator=generator) * 0.05, torch.full((2, 12, 2), 0.3)], 2)
        kept = torch.rand(12, generator=generator) > 0.4
        kept[0] = first  # the row that is read: of a query that is kept nothing is masked
        mask = (~kept[:, None] & ~kept).float()
        return query, boxes, mask[None].repeat(4, 1, 1)

    def test_mask(self, traced):
        graph = traced(self.function, self.args(0, True), ['SelectDistinctQueries', 'BatchedNMS'])
        assert graph.unknown == []
        for seed, first in ((1, True), (2, False), (3, False)):
            mask, _ = graph.check(*self.args(seed, first))
            assert mask.any() and not mask.all()


def test_padding_to(traced):
    def function(x, y):
        from mmdet.models.utils import align_tensor

        return align_tensor([x[y > 0], x], 8)

    graph = traced(function, [torch.rand(6, 2), torch.rand(6)], ['PaddingTo'], [[0], [0]])
    assert graph.unknown == []
    for n in (6, 8, 1):
        answer = graph.check(torch.rand(n, 2), torch.randn(n))
        assert answer[0].shape == (2, 8, 2)
        np.testing.assert_array_equal(answer[0][1, n:], 0)


def test_bucket_boxes_are_clipped_to_traced_sizes(traced, boxes_of):
    from mmdet.models.task_modules.coders.bucketing_bbox_coder import bucket2bbox

    def function(boxes, cls_preds, offsets, size):
        shape = (size[0], size[1]) if torch.jit.is_tracing() else tuple(size.tolist())
        return bucket2bbox(boxes, cls_preds, offsets, 14, 1.7, shape)

    def args(seed, n, size):
        generator = torch.Generator().manual_seed(seed)
        return boxes_of(seed, n), *(torch.randn(n, 28, generator=generator) for _ in range(2)), torch.tensor(size)

    graph = traced(function, args(0, 10, (60, 80)), ['Bucket2BBox'], [[0], [0], [0]])
    assert graph.unknown == []
    for case in ((1, 20, (60, 50)), (2, 5, (90, 50))):
        boxes, _ = graph.check(*args(*case), atol=1e-4)
        assert boxes.min() >= 0 and boxes[:, 2].max() == 49  # the last pixel
