"""``multiclass_nms`` against mmdet's."""

from __future__ import annotations

import pytest
import torch

from mmdeploy_lite.errors import UnsupportedError

REWRITERS = ['BatchedNMS', 'MulticlassNMS']
NMS = dict(type='nms', iou_threshold=0.5)


def call(score_thr=0.3, nms=NMS, max_num=-1, factors=False, **kwargs):
    def function(boxes, scores, *score_factors):
        from mmdet.models.layers import multiclass_nms

        given = score_factors[0] if factors else None
        return multiclass_nms(boxes, scores, score_thr, nms, max_num, score_factors=given, **kwargs)

    return function


def inputs(boxes_of, seed, n, classes=4, shared=True, factors=False):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(n, classes + 1, generator=generator)
    boxes = boxes_of(seed, n)
    if not shared:
        boxes = (boxes.repeat(1, classes) + torch.randn(n, 4 * classes, generator=generator)).contiguous()
    return (boxes, scores, *([torch.rand(n, generator=generator)] * factors))


@pytest.mark.parametrize(
    ('shared', 'options'),
    [
        (True, dict()),
        (False, dict()),
        (True, dict(max_num=6)),
        (False, dict(nms=dict(NMS, max_num=5), max_num=9)),
        (True, dict(nms=dict(NMS, max_num=9), max_num=5)),
        (False, dict(nms=dict(NMS, class_agnostic=True))),
        (False, dict(nms=dict(NMS, score_threshold=0.6))),
        (True, dict(factors=True)),
        (False, dict(return_inds=True, max_num=11)),
        (False, dict(return_inds=True, factors=True)),
        (True, dict(return_inds=True)),
        (False, dict(nms=None, max_num=5)),
        (True, dict(score_thr=0.0)),
    ],
    ids=str,
)
def test_every_option(traced, boxes_of, shared, options):
    def make(seed, n):
        return inputs(boxes_of, seed, n, shared=shared, factors=options.get('factors', False))

    graph = traced(call(**options), make(0, 30), REWRITERS, [[0], [0], [0]])
    assert graph.unknown == []
    assert 1 < len(graph.check(*make(1, 70))[0])
    assert len(graph.check(*make(2, 3))[0]) > 0
    # rejected while tracing is not a branch that is frozen: none is left, then many
    boxes, scores, *rest = make(3, 40)
    for answer in (graph.run(boxes, scores * 0 - 1, *rest), graph.eager(boxes, scores * 0 - 1, *rest)):
        assert [value.shape[0] for value in answer] == [0] * len(answer)


@pytest.mark.parametrize('classes', [1, 3])
def test_number_of_classes(traced, boxes_of, classes):
    graph = traced(call(), inputs(boxes_of, 0, 30, classes), REWRITERS, [[0], [0]])
    labels = graph.check(*inputs(boxes_of, 1, 60, classes))[1]
    assert sorted(set(labels.tolist())) == list(range(classes))  # the last class too, and no background


def test_traced_on_an_image_where_everything_is_rejected(traced, boxes_of):
    boxes, scores = inputs(boxes_of, 0, 30)
    graph = traced(call(), (boxes, scores * 0.01), REWRITERS, [[0], [0]])
    graph.check(boxes, scores)


def test_boxes_that_are_rejected_do_not_count_in_the_class_offset(traced, boxes_of):
    graph = traced(call(), inputs(boxes_of, 0, 30), REWRITERS, [[0], [0]])
    boxes, scores = inputs(boxes_of, 1, 80)
    boxes[::3] *= 1e6
    scores[::3] = 0.1
    graph.check(boxes, scores)


def test_other_nms_is_refused(traced, boxes_of):
    with pytest.raises(UnsupportedError, match="'nms_match'"):
        traced(call(nms=dict(type='nms_match', iou_threshold=0.5)), inputs(boxes_of, 0, 30), REWRITERS)
