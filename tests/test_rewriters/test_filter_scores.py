"""``filter_scores_and_topk`` against mmdet's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmdeploy_lite.export import ExportState, exporting
from mmdeploy_lite.rewriters.mmdet_dense import FilterScoresAndTopk
from mmdeploy_lite.rewriting import RewriteContext

FIXED = {'filter': {'type': 'FilterScoresAndTopk', 'fixed_size': True}}
FILTERED = {'filter': {'type': 'FilterScoresAndTopk', 'fixed_size': False}}


def call(score_thr, topk):
    def function(scores, boxes):
        from mmdet.models.utils import filter_scores_and_topk

        scores, labels, keep, results = filter_scores_and_topk(scores, score_thr, topk, dict(boxes=boxes))
        return scores, labels, keep, results['boxes']

    return function


def inputs(seed, n, classes):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randperm(n * classes, generator=generator).view(n, classes) / (n * classes)  # no two are equal
    return scores, torch.rand(n, 4, generator=generator)


def accepted(answer):
    """The (anchor, class) pairs that are not rejected, in order of score."""
    scores, labels, keep, boxes = answer
    assert len(scores) == len(labels) == len(keep) == len(boxes)
    left = scores > -np.inf
    order = np.argsort(-scores[left], kind='stable')
    return [value[left][order] for value in answer]


@pytest.mark.parametrize('classes', [1, 20])
@pytest.mark.parametrize('topk', [5, 1000])
@pytest.mark.parametrize('score_thr', [-1.0, 0.9])
def test_fixed_size_is_the_original_once_the_rejected_are_dropped(traced, classes, topk, score_thr):
    graph = traced(call(score_thr, topk), inputs(0, 30, classes), FIXED, [[0], [0]])
    assert graph.unknown == []
    assert 'NonZero' not in graph.ops()
    for seed, n in ((1, 30), (2, 200), (3, 4), (4, 1)):
        args = inputs(seed, n, classes)
        expected = accepted(graph.original(*args))
        assert len(expected[0]) <= min(topk, n * classes)
        for answer in (graph.eager(*args), graph.run(*args)):
            assert len(answer[0]) == min(topk, n * classes)  # a size that no threshold changes
            for value, reference in zip(accepted(answer), expected, strict=True):
                np.testing.assert_array_equal(value, reference)


@pytest.mark.parametrize('classes', [1, 20])
@pytest.mark.parametrize(('topk', 'score_thr'), [(5, 0.5), (1000, 0.5), (1000, 2.0)])
def test_filtered_is_the_original_and_one_rejected_pair(traced, classes, topk, score_thr):
    graph = traced(call(score_thr, topk), inputs(0, 30, classes), FILTERED, [[0], [0]])
    assert graph.unknown == []
    for seed, n in ((1, 30), (2, 200), (3, 1)):
        args = inputs(seed, n, classes)
        expected = accepted(graph.original(*args))
        for answer in (graph.eager(*args), graph.run(*args)):
            assert len(answer[0]) == min(len(expected[0]) + 1, topk)  # never none
            for value, reference in zip(accepted(answer), expected, strict=True):
                np.testing.assert_array_equal(value, reference)


@pytest.mark.parametrize(('topk', 'filtered'), [(1000, False), (30000, True)])
def test_many_candidates_are_filtered(traced, topk, filtered):
    graph = traced(call(0.5, topk), inputs(0, 30, 3), {'filter': {'type': 'FilterScoresAndTopk'}}, [[0], [0]])
    assert ('NonZero' in graph.ops()) == filtered


@pytest.mark.parametrize('topk', [-1, 0])
def test_without_a_limit_there_is_no_fixed_size(traced, topk):
    graph = traced(call(0.5, topk), inputs(0, 30, 3), FIXED, [[0], [0]])
    graph.check(*inputs(1, 50, 3))


def test_traced_where_nothing_passes_the_threshold(traced):
    scores, boxes = inputs(0, 30, 3)
    for config in (FIXED, FILTERED):
        graph = traced(call(0.5, 10), (scores * 0.1, boxes), config, [[0], [0]])
        expected = accepted(graph.original(*inputs(1, 50, 3)))
        assert len(expected[0]) == 10
        for value, reference in zip(accepted(graph.run(*inputs(1, 50, 3))), expected, strict=True):
            np.testing.assert_array_equal(value, reference)


def test_equal_scores_give_equal_scores(traced):
    """Which of equal pairs stay is free; how many of each score is not."""
    scores, boxes = inputs(1, 100, 4)
    scores = (scores * 8).round() / 8
    graph = traced(call(0.3, 60), inputs(0, 30, 4), FIXED, [[0], [0]])
    expected = accepted(graph.original(scores, boxes))[0]
    answer = accepted(graph.run(scores, boxes))
    np.testing.assert_array_equal(answer[0], expected)
    pairs = set(zip(answer[2].tolist(), answer[1].tolist(), strict=True))
    assert len(pairs) == len(expected)
    np.testing.assert_array_equal(scores.numpy()[answer[2], answer[1]], answer[0])


@pytest.mark.parametrize('config', [FIXED, FILTERED])
def test_forms_of_the_results(config):
    from mmdet.models.utils import filter_scores_and_topk

    from mmdeploy_lite.registry import REWRITERS
    from mmdeploy_lite.rewriting import build_rewriters

    scores, boxes = inputs(0, 40, 3)
    forms = [None, boxes, [boxes, boxes + 1], dict(a=boxes, b=boxes + 1)]
    expected = [filter_scores_and_topk(scores, 0.1, 20, form) for form in forms]
    with RewriteContext(build_rewriters(config, REWRITERS)):
        from mmdet.models.utils.misc import filter_scores_and_topk as replaced

        answers = [replaced(scores, 0.1, 20, form) for form in forms]
        order = answers[0][0].argsort(descending=True)  # which is free
    for answer, reference in zip(answers, expected, strict=True):
        assert type(answer[3]) is type(reference[3])
    assert torch.equal(answers[1][3][order], expected[1][3])
    assert all(torch.equal(one[order], other) for one, other in zip(answers[2][3], expected[2][3], strict=True))
    assert answers[3][3].keys() == expected[3][3].keys()
    assert all(torch.equal(answers[3][3][key][order], expected[3][3][key]) for key in 'ab')


@pytest.mark.parametrize(('fixed_size', 'topk', 'pending'), [(True, 5, True), (True, -1, False), (False, 5, True)])
def test_says_whether_rejected_ones_are_left(fixed_size, topk, pending):
    state = ExportState()
    with RewriteContext({'filter': FilterScoresAndTopk(fixed_size)}), exporting(state):
        call(0.5, topk)(*inputs(0, 30, 3))
    assert state.rejected_pending is pending
