"""NMS of a dense head over a shortlist: which way is taken, and that both answer what mmdet answers."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from mmengine.config import ConfigDict
from scipy.optimize import linear_sum_assignment

from mmdeploy_lite.export.choices import taking_the_second_way
from mmdeploy_lite.rewriters.mmdet_dense import MANY

REWRITERS = [
    *('FilterScoresAndTopk', 'BBoxPostProcess', 'ShortlistFirst', 'BatchedNMS', 'ScaleBoxes', 'Distance2BBox'),
    *('NotInOnnxExport', 'Squeeze'),
]
SIZES, CLASSES = [(8, 12), (4, 6)], 5
TEST_CFG = dict(
    nms_pre=MANY, min_bbox_size=0, score_thr=0.01, nms=dict(type='nms', iou_threshold=0.5), max_per_img=6
)  # with 5 pairs on a shortlist for each of them: 30


@pytest.fixture(scope='module')
def head():
    from mmdet.models.dense_heads import RTMDetHead

    from mmdeploy_lite.loading import use_scope

    def make(kind=RTMDetHead, clip=True, **test_cfg):
        return kind(
            num_classes=CLASSES,
            in_channels=4,
            feat_channels=4,
            stacked_convs=1,
            norm_cfg=dict(type='BN'),
            with_objectness=False,
            anchor_generator=dict(type='MlvlPointGenerator', offset=0, strides=[8, 16]),
            bbox_coder=dict(type='DistancePointBBoxCoder', clip_border=clip),
            loss_cls=dict(type='QualityFocalLoss', use_sigmoid=True, beta=2.0, loss_weight=1.0),
            loss_bbox=dict(type='GIoULoss', loss_weight=2.0),
            test_cfg=ConfigDict(TEST_CFG | test_cfg),
        ).eval()

    use_scope('mmdet')
    return make


def predict(head, factors=False, scale=(0.5, 2.0), with_nms=True):
    def function(*outputs):
        levels = len(outputs) // 2
        scores, boxes = list(outputs[:levels]), list(outputs[levels:])
        sizes = [score.shape[-2:] for score in scores]
        meta = dict(img_shape=(sizes[0][0] * 8, sizes[0][1] * 8), scale_factor=scale)
        more = [score[:, :1] for score in scores] if factors else None
        (results,) = head.predict_by_feat(scores, boxes, more, batch_img_metas=[meta], rescale=True, with_nms=with_nms)
        return results.bboxes, results.scores, results.labels

    return function


def dense(seed, sizes=SIZES, mean=-1.0):
    """What the head predicts: half of all pairs or more pass, boxes are a few pixels large and all over the image."""
    generator = torch.Generator().manual_seed(seed)
    scores = [mean + 2 * torch.randn(1, CLASSES, *size, generator=generator) for size in sizes]
    boxes = [
        stride * (1 + torch.rand(1, 4, *size, generator=generator)) for stride, size in zip((8, 16), sizes, strict=True)
    ]
    return [*scores, *boxes]


def at(stride, size, box):
    """(1, 4, h, w) distances that give every place this box, in pixels of the network's input."""
    rows, columns = torch.meshgrid(*(stride * torch.arange(length) for length in size), indexing='ij')
    left, top, right, bottom = box
    return torch.stack([columns - left, rows - top, right - columns, bottom - rows])[None].float()


class Chosen:
    """An exported head, and what decides which way it goes."""

    def __init__(self, graph):
        self.graph = graph
        assert graph.unknown == []
        model, names = taking_the_second_way(graph.model)
        assert len(names) == 1
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self.second = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=['CPUExecutionProvider']
        )

    def __call__(self, *outputs):
        """Compare both ways with mmdet; whether the shortlist decided, and the answer."""
        expected = rows(self.graph.original(*outputs))
        *second, enough = self.second.run(None, {f'in{i}': output.numpy() for i, output in enumerate(outputs)})
        for answer in (self.graph.eager(*outputs), self.graph.run(*outputs), second):
            assert_same_rows(rows(answer), expected)
        return bool(enough), expected


def rows(answer):
    """Boxes, scores and labels side by side."""
    return np.concatenate([value.reshape(len(value), 4 if value.ndim == 2 else 1) for value in answer], axis=1)


def assert_same_rows(answer, expected):
    """In any order, that of equal scores is free; pixels and scores round."""
    assert answer.shape == expected.shape
    if len(answer):
        distance = np.abs(answer[:, None] - expected[None]).max(axis=2)
        assert distance[linear_sum_assignment(distance)].max() <= 1e-4


@pytest.fixture(scope='module')
def chosen(traced, head):
    return Chosen(traced(predict(head()), dense(0), REWRITERS))


class TestWhatDecides:
    def test_scores_of_the_shortlist(self, chosen):
        for seed in range(1, 6):
            decided, answer = chosen(*dense(seed))
            assert decided and len(answer) == 6

    def test_all_pairs_are_on_it(self, chosen):
        for seed, mean, count in ((1, -9.5, range(1, 6)), (2, -30.0, range(1))):
            decided, answer = chosen(*dense(seed, mean=mean))
            assert decided and len(answer) in count  # fewer than max_per_img, and none

    def test_too_few_are_kept_of_it(self, chosen):
        scores, boxes = dense(3)[:2], [at(8, SIZES[0], (10, 10, 96, 40)), at(16, SIZES[1], (10, 10, 96, 40))]
        decided, answer = chosen(*scores, *boxes)
        assert not decided and len(answer) == 5  # one of each class, and all of its pairs suppress each other
        boxes[0][..., 6:] = dense(4)[2][..., 6:]
        scores[0][..., 6:] -= 5
        decided, answer = chosen(*scores, *boxes)
        assert not decided and len(answer) == 6  # the last scores less than what is on it

    def test_a_level_that_ends_higher_than_another(self, chosen):
        """What is kept of a level's shortlist may score less than what another's left out."""
        scores, boxes = [score - 8 for score in dense(5)[:2]], dense(5)[2:]
        scores[1] = 5 + scores[1].abs()
        scores[1][..., 3:] /= 10
        boxes[1] = torch.where(torch.arange(6) < 3, at(16, SIZES[1], (10, 10, 96, 60)), boxes[1])
        decided, answer = chosen(*scores, *boxes)
        assert not decided and len(answer) == 6

    def test_reaches_less_far_than_others(self, chosen):
        """The classes are moved apart by the largest coordinate of all candidates, on the shortlist or not."""
        scores, boxes = dense(6)[:2], [box.clone() for box in dense(6)[2:]]
        for score, box, stride in zip(scores, boxes, (8, 16), strict=True):
            last = -2 * 16 // stride
            score[..., last:] -= 6  # near the right border, which is farthest out
            box[:, 2, :, :last] = box[:, 2, :, :last].clamp(max=stride)
        decided, answer = chosen(*scores, *boxes)
        assert not decided and len(answer) == 6
        scores[0][0, 2, 3, -1] = 9  # one of them touches it
        decided, answer = chosen(*scores, *boxes)
        assert decided

    def test_boxes_of_no_size_reach_nowhere(self, chosen):
        scores, boxes = dense(7)[:2], [box.clone() for box in dense(7)[2:]]
        for score, box, stride in zip(scores, boxes, (8, 16), strict=True):
            last = -2 * 16 // stride
            score[..., last:] -= 6
            box[:, 2, :, :last] = box[:, 2, :, :last].clamp(max=stride)
        scores[0][0, 2, 3, -1] = 9
        boxes[0][0, 1::2, 3, -1] = 0  # of no height, at the border: min_bbox_size drops it
        decided, answer = chosen(*scores, *boxes)
        assert not decided and not np.isclose(answer[:, 4], torch.tensor(9.0).sigmoid().item()).any()

    def test_below_zero(self, traced, head):
        """Boxes that are not clipped may lie there, where the classes' spacing depends on the number of candidates."""
        graph = Chosen(traced(predict(head(clip=False)), dense(0), REWRITERS))
        outputs = dense(8)
        for box, stride, size in zip(outputs[2:], (8, 16), SIZES, strict=True):
            box.copy_(torch.minimum(box, at(stride, size, (-20, 0, 94, 62))))  # those on the left begin there
        outputs[0][0, 1, 2, -1], outputs[2][0, 2, 2, -1] = 9, 30  # reaches farthest
        decided, _ = graph(*outputs)
        assert not decided
        for box, stride, size in zip(outputs[2:], (8, 16), SIZES, strict=True):
            box[:, 0] = torch.minimum(box[:, 0], at(stride, size, (0, 0, 94, 62))[:, 0])
        decided, _ = graph(*outputs)
        assert decided

    def test_small_boxes_go_after_rescaling(self, traced, head):
        graph = Chosen(traced(predict(head(min_bbox_size=25), scale=(0.5, 0.5)), dense(0), REWRITERS))
        decided, answer = graph(*dense(1))
        assert decided and (answer[:, 2:4] - answer[:, :2]).min() < 50  # of the network's input, less than 25


def test_any_size(traced, head):
    graph = Chosen(traced(predict(head()), dense(0), REWRITERS, [[2, 3]] * 4, dynamic=True))
    for seed, sizes in ((1, [(10, 14), (5, 7)]), (2, [(2, 2), (1, 1)])):  # and less pairs than on a shortlist
        decided, answer = graph(*dense(seed, sizes))
        assert decided or seed == 2


@pytest.mark.parametrize(
    'test_cfg',
    [
        dict(nms_pre=MANY - 1),
        dict(max_per_img=-1),
        dict(max_per_img=MANY // 5),
        dict(nms=dict(type='nms', iou_threshold=0.5, class_agnostic=True)),
        dict(nms=dict(type='soft_nms', iou_threshold=0.5)),
    ],
    ids=str,
)
def test_not_where_it_might_not_be_the_same(traced, head, test_cfg):
    graph = traced(predict(head(**test_cfg)), dense(0), REWRITERS)
    assert 'If' not in graph.ops()
    if 'soft_nms' not in str(test_cfg):  # which is compared in its own tests, within the rounding of its decay
        assert_same_rows(rows(graph.run(*dense(1))), rows(graph.original(*dense(1))))


def test_not_with_factors_of_scores(traced, head):
    """They reorder what the shortlist ranked."""
    graph = traced(predict(head(), factors=True), dense(0), REWRITERS)
    assert 'If' not in graph.ops()
    assert_same_rows(rows(graph.run(*dense(1))), rows(graph.original(*dense(1))))


def test_not_with_a_heads_own_post_processing(traced, head):
    from mmdet.models.dense_heads import RTMDetHead

    class Own(RTMDetHead):
        def _bbox_post_process(self, results, *args, **kwargs):
            results.scores = 1 - results.scores
            return super()._bbox_post_process(results, *args, **kwargs)

    class Noted(RTMDetHead):
        def _predict_by_feat_single(self, *args, **kwargs):
            results = super()._predict_by_feat_single(*args, **kwargs)
            results.areas = (results.bboxes[:, 2:] - results.bboxes[:, :2]).prod(dim=1)
            return results

    graph = traced(predict(head(Own)), dense(0), REWRITERS)
    assert 'If' not in graph.ops()
    graph = traced(predict(head(Noted)), dense(0), REWRITERS)  # it adds to the answer, whichever way that came
    assert graph.ops().count('If') == 1
    assert_same_rows(rows(graph.run(*dense(1))), rows(graph.original(*dense(1))))


def test_not_without_nms(traced, head):
    assert 'If' not in traced(predict(head(), with_nms=False), dense(0), REWRITERS).ops()


def test_can_be_left_out(traced, head):
    rewriters = {name: dict(type=name) for name in REWRITERS}
    rewriters['ShortlistFirst']['times'] = 0
    assert 'If' not in traced(predict(head()), dense(0), rewriters).ops()


def test_through_torch_export(symbolic, head):
    graph = symbolic(predict(head()), dense(0), REWRITERS)
    assert 'If' not in graph.ops()
    for outputs in (dense(1), dense(2, mean=-9.5)):
        assert_same_rows(rows(graph.run(*outputs)), rows(graph.original(*outputs)))
