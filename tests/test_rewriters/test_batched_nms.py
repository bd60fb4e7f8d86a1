"""``batched_nms`` against mmcv's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmdeploy_lite.errors import NothingDetectedError, UnsupportedError
from mmdeploy_lite.export import ExportState, exporting
from mmdeploy_lite.rewriters.mmcv_ops import BatchedNMS, find_nms_configs, nms_arguments
from mmdeploy_lite.rewriting import RewriteContext

CONFIGS = {
    'plain': dict(type='nms', iou_threshold=0.5),
    'agnostic': dict(type='nms', iou_threshold=0.5, class_agnostic=True),
    'max_num': dict(type='nms', iou_threshold=0.6, max_num=7),
    'score_threshold': dict(type='nms', iou_threshold=0.6, score_threshold=0.4),
    'split': dict(type='nms', iou_threshold=0.5, split_thr=50),
    'split_max_num': dict(type='nms', iou_threshold=0.5, split_thr=50, max_num=9),
    'split_agnostic': dict(type='nms', iou_threshold=0.5, split_thr=50, class_agnostic=True),
    'offset': dict(type='nms', iou_threshold=0.5, offset=1),
    'loose': dict(type='nms', iou_threshold=0.0),
    'deprecated_name': dict(type='nms', iou_thr=0.5),
    'no_type': dict(iou_threshold=0.5),
    'none': None,
}


def call(config, class_agnostic=False):
    def function(boxes, scores, idxs):
        from mmcv.ops.nms import batched_nms

        return batched_nms(boxes, scores, idxs, config, class_agnostic)

    return function


@pytest.fixture(scope='module')
def known():
    return {}


@pytest.fixture
def graph_of(known, traced, boxes_of):
    """The graph of a config, traced once for all tests."""

    def make(name, class_agnostic=False):
        if (name, class_agnostic) not in known:
            known[name, class_agnostic] = traced(
                call(CONFIGS[name], class_agnostic), inputs(boxes_of, 0, 40), ['BatchedNMS'], [[0], [0], [0]]
            )
        return known[name, class_agnostic]

    return make


def inputs(boxes_of, seed, n, low=0.0, classes=5):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(n, generator=generator)
    return boxes_of(seed, n, low=low), scores, torch.randint(classes, (n,), generator=generator)


@pytest.mark.parametrize('name', CONFIGS)
def test_every_config(graph_of, boxes_of, name):
    graph = graph_of(name)
    assert graph.unknown == []
    kept = {}
    for seed, n, low in ((1, 49, 0), (2, 50, -120), (3, 120, 0), (3, 120, -120), (4, 1, 0)):  # below zero, too
        kept[n, low] = graph.check(*inputs(boxes_of, seed, n, low=low))[0].shape[0]
    assert kept[1, 0] == 1 and (kept[120, 0] == 120) == (name == 'none')
    if name not in ('none', 'loose'):
        assert 1 < kept[120, 0] < 120
    assert graph.ops().count('NonMaxSuppression') == (name != 'none')
    assert 'If' not in graph.ops() and 'Loop' not in graph.ops()
    empty = graph.run(*(value[:0] for value in inputs(boxes_of, 0, 4)))
    assert [value.shape for value in empty] == [(0, 5), (0,)]


@pytest.mark.parametrize('name', ['plain', 'agnostic', 'max_num', 'split', 'none'])
def test_rejected_ones_are_as_if_they_were_not_there(graph_of, boxes_of, name):
    graph = graph_of(name)
    for seed, share in ((1, 0.3), (2, 0.7), (3, 1.0)):
        boxes, scores, idxs = inputs(boxes_of, seed, 150)
        rejected = torch.rand(150, generator=torch.Generator().manual_seed(seed)) < share
        boxes[rejected] *= 1e6  # and they must not move the classes further apart
        left = (~rejected).nonzero().squeeze(1)
        if len(left):
            expected_dets, expected = graph.original(boxes[left], scores[left], idxs[left])
            expected = left.numpy()[expected]
        else:
            expected_dets, expected = np.zeros((0, 5), np.float32), np.zeros(0, np.int64)
        scores[rejected] = float('-inf')
        scores[: len(scores) // 2][rejected[: len(scores) // 2]] = float('nan')  # a rejected score times zero
        for answer in (graph.eager(boxes, scores, idxs), graph.run(boxes, scores, idxs)):
            np.testing.assert_array_equal(answer[1], expected)
            np.testing.assert_array_equal(answer[0], expected_dets)


@pytest.mark.parametrize('name', ['plain', 'agnostic', 'offset'])
def test_boxes_of_no_or_negative_size(graph_of, boxes_of, name):
    """ONNX reorders corners; mmcv does not, and such a box neither goes nor makes another one go."""
    graph = graph_of(name)
    boxes, scores, idxs = inputs(boxes_of, 5, 160)
    swapped = boxes.clone()
    swapped[0::4, [0, 2]] = boxes[0::4, [2, 0]]
    swapped[1::4, [1, 3]] = boxes[1::4, [3, 1]]
    swapped[2::8] = boxes[2::8][:, [2, 3, 0, 1]]
    flat = boxes[6::8].clone()
    flat[:, 2] = flat[:, 0]
    swapped[6::8] = flat
    assert len(graph.check(swapped, scores, idxs)[1]) > len(graph.check(boxes, scores, idxs)[1])


@pytest.mark.parametrize('name', ['plain', 'agnostic', 'max_num'])
def test_equal_scores_and_equal_boxes(graph_of, boxes_of, name):
    graph = graph_of(name)
    boxes, scores, idxs = inputs(boxes_of, 6, 100)
    graph.check(boxes, (scores * 4).round() / 4, idxs)
    graph.check(boxes[torch.arange(100) // 3], (scores * 4).round() / 4, idxs)
    graph.check(boxes, torch.full_like(scores, 0.5), idxs)


@pytest.mark.parametrize('argument', [False, True])
@pytest.mark.parametrize('config', ['plain', 'agnostic'])
def test_class_agnostic_as_an_argument(graph_of, boxes_of, argument, config):
    graph = graph_of(config, argument)
    graph.check(*inputs(boxes_of, 1, 120))


def test_one_class_and_one_box(traced, boxes_of):
    graph = traced(call(CONFIGS['plain']), inputs(boxes_of, 0, 1, classes=1), ['BatchedNMS'], [[0], [0], [0]])
    graph.check(*inputs(boxes_of, 1, 1, classes=1))
    graph.check(*inputs(boxes_of, 1, 60, classes=1))


@pytest.mark.parametrize('config', ['plain', 'none'])
def test_no_box_while_tracing_is_an_error(traced, boxes_of, config):
    with pytest.raises(NothingDetectedError, match='no box reached NMS while tracing.*lower score_thr'):
        traced(call(CONFIGS[config]), inputs(boxes_of, 0, 0), ['BatchedNMS'], [[0], [0], [0]])


def test_nms_clears_what_was_rejected(boxes_of):
    for config in (CONFIGS['plain'], None):
        state = ExportState(rejected_pending=True)
        with RewriteContext({'nms': BatchedNMS()}), exporting(state):
            call(config)(*inputs(boxes_of, 0, 10))
        assert state.rejected_pending is False


@pytest.mark.parametrize(
    ('config', 'says'),
    [
        (dict(type='nms_match', iou_threshold=0.5), "'nms_match'; only 'nms' and 'soft_nms' can be exported exactly"),
        (dict(type='nms_rotated', iou_threshold=0.5), "'nms_rotated'"),
        (dict(type='nms', iou_threshold=0.5, min_score=0.1), r"\['min_score'\], which mmcv.ops.nms does not take"),
        (dict(type='nms'), 'has no iou_threshold'),
    ],
)
def test_other_nms_is_refused(boxes_of, config, says):
    with RewriteContext({'nms': BatchedNMS()}), pytest.raises(UnsupportedError, match=says):
        call(config)(*inputs(boxes_of, 0, 10))

    class Model:
        test_cfg = dict(rpn=dict(nms=dict(type='nms', iou_threshold=0.7)), rcnn=dict(nms=config))

    with pytest.raises(UnsupportedError, match=says):  # and before anything is traced
        BatchedNMS().check(Model())


def test_nms_as_a_function_in_the_config():
    from mmcv.ops import nms, nms_match

    assert nms_arguments(dict(type=nms, iou_threshold=0.5))['iou_threshold'] == 0.5
    with pytest.raises(UnsupportedError, match="'nms_match'"):
        nms_arguments(dict(type=nms_match, iou_threshold=0.5))


def test_rotated_boxes_are_refused(boxes_of):
    boxes, scores, idxs = inputs(boxes_of, 0, 10)
    with RewriteContext({'nms': BatchedNMS()}), pytest.raises(UnsupportedError, match='5 coordinates'):
        call(CONFIGS['plain'])(torch.cat([boxes, boxes[:, :1]], dim=1), scores, idxs)


def test_find_nms_configs():
    one, two = dict(type='nms', iou_threshold=0.7), dict(type='nms', iou_threshold=0.5)
    assert find_nms_configs(None) == {}
    assert find_nms_configs(dict(score_thr=0.1)) == {}
    assert find_nms_configs(dict(nms=one)) == {'test_cfg.nms': one}
    found = find_nms_configs(dict(rpn=dict(nms=one), rcnn=dict(nms=two, max_per_img=5)))
    assert found == {'test_cfg.rpn.nms': one, 'test_cfg.rcnn.nms': two}


def test_by_torch_export(symbolic, boxes_of):
    """As many as there are: none, one, for which the libraries have branches of their own, and many."""

    def function(boxes, scores, idxs):
        from mmcv.ops.nms import batched_nms

        dets, keep = batched_nms(boxes, scores, idxs, CONFIGS['max_num'])
        if dets.numel() == 0:
            return dets[:0], keep[:0]
        return dets, idxs[keep]

    graph = symbolic(function, inputs(boxes_of, 0, 40), ['BatchedNMS'], [[0], [0], [0]])
    assert graph.ops().count('NonMaxSuppression') == 1
    for seed, n in ((1, 40), (2, 3), (3, 1)):
        boxes, scores, idxs = inputs(boxes_of, seed, n)
        dets, labels = graph.check(boxes, scores, idxs)
        assert 0 < len(dets) == len(labels) <= 7
    assert graph.run(boxes, torch.full_like(scores, float('-inf')), idxs)[0].shape == (0, 5)
