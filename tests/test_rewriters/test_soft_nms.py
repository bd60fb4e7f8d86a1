"""Soft-NMS and plain ``nms`` against mmcv's, and what loops over whole rounds settles."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmdeploy_lite.errors import UnsupportedError
from mmdeploy_lite.export.repeats import settle
from mmdeploy_lite.rewriters.mmcv_ops import soft_nms_arguments

CONFIGS = {
    'gaussian': dict(type='soft_nms', iou_threshold=0.5, method='gaussian', min_score=0.05),
    'linear': dict(type='soft_nms', iou_threshold=0.3, min_score=0.1, offset=1),
    'naive': dict(type='soft_nms', method='naive', class_agnostic=True),
}


def call(config):
    def function(boxes, scores, idxs):
        from mmcv.ops.nms import batched_nms

        return batched_nms(boxes, scores, idxs, config)

    return function


def inputs(boxes_of, seed, n):
    generator = torch.Generator().manual_seed(seed)
    return boxes_of(seed, n), torch.rand(n, generator=generator), torch.randint(3, (n,), generator=generator)


@pytest.mark.parametrize('name', CONFIGS)
def test_soft_nms(both, boxes_of, name):
    graph = both(call(CONFIGS[name]), inputs(boxes_of, 0, 20), ['BatchedNMS'], [[0], [0], [0]])
    assert graph.unknown == [] and 'Loop' in graph.ops()
    for seed, n in ((1, 60), (2, 7), (3, 1)):
        dets, _ = graph.check(*inputs(boxes_of, seed, n), atol=1e-5)
        assert 0 < len(dets) and (n < 60 or len(dets) < n)


def test_rejected_scores_take_no_part(traced, boxes_of):
    graph = traced(call(CONFIGS['gaussian']), inputs(boxes_of, 0, 20), ['BatchedNMS'], [[0], [0], [0]])
    boxes, scores, idxs = inputs(boxes_of, 1, 40)
    expected, _ = graph.original(boxes[::2], scores[::2], idxs[::2])
    scores[1::2] = float('-inf')
    boxes[1::2] = 1e4
    np.testing.assert_allclose(graph.run(boxes, scores, idxs)[0], expected, atol=1e-5)
    assert len(graph.run(boxes, torch.full_like(scores, float('-inf')), idxs)[0]) == 0


def test_soft_nms_arguments():
    assert soft_nms_arguments(dict(type='soft_nms', iou_thr=0.4))['iou_threshold'] == 0.4
    with pytest.raises(UnsupportedError, match=r"\['max_num'\], which mmcv.ops.soft_nms does not take"):
        soft_nms_arguments(dict(type='soft_nms', max_num=5))
    with pytest.raises(UnsupportedError, match="method='cubic'; known are naive, linear, gaussian"):
        soft_nms_arguments(dict(type='soft_nms', method='cubic'))


@pytest.mark.parametrize('options', [{}, dict(offset=1), dict(score_threshold=0.4, max_num=5)])
def test_plain_nms(traced, boxes_of, options):
    def function(boxes, scores):
        from mmcv.ops import nms

        return nms(boxes, scores, 0.5, **options)

    graph = traced(function, inputs(boxes_of, 0, 20)[:2], ['NMS'], [[0], [0]])
    for seed, n in ((1, 60), (2, 3)):
        graph.check(*inputs(boxes_of, seed, n)[:2])


def test_settled_is_greedy():
    generator = torch.Generator().manual_seed(0)
    for share in (0.05, 0.3, 0.9):
        suppresses = torch.rand(40, 40, generator=generator).lt(share).triu(1).float()
        keep = np.ones(40)
        for i in range(40):
            if keep[i]:
                keep[i + 1 :][suppresses[i, i + 1 :].numpy() > 0] = 0
        assert settle(suppresses).tolist() == keep.tolist()
    chain = torch.diag(torch.ones(29), 1)  # each suppresses the next one: every second is kept
    assert settle(chain).tolist() == [1.0, 0.0] * 15
