"""Traced values where Python would make something else of them, and sizes of zero."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from mmdeploy_lite.rewriters.traced_values import FieldsInOrder
from mmdeploy_lite.rewriting import RewriteContext


class TestViewOfRows:
    @pytest.mark.parametrize('method', ['view', 'reshape'])
    def test_no_rows(self, traced, method):
        def function(x):
            return getattr(x, method)(x.size(0), -1, 4), getattr(x, method)((x.shape[0], 2, -1))

        graph = traced(function, [torch.rand(3, 8)], ['ViewOfRows'], [[0]])
        for rows in (3, 1, 6):
            graph.check(torch.rand(rows, 8))
        assert [value.shape for value in graph.run(torch.rand(0, 8))] == [(0, 2, 4), (0, 2, 4)]

    def test_other_views_are_the_originals(self, traced):
        def function(x):
            return x.view(-1, 4), x.view(2, -1), x.view(x.size(1), -1)

        traced(function, [torch.rand(6, 8)], ['ViewOfRows']).check(torch.rand(6, 8))


def test_zero_is_a_size_and_copies_none(traced):
    """ONNX copies the input's size where a Reshape says 0, unless it is told not to."""

    def function(x):
        return x.reshape(x.size(1), 4, 5)

    graph = traced(function, [torch.rand(1, 3, 4, 5)], [], [[1]])
    for channels in (3, 1, 0):
        graph.check(torch.rand(1, channels, 4, 5))


def test_deep_copy_of_a_traced_tensor_is_traced(traced):
    def function(x):
        boxes = copy.deepcopy(x)
        boxes[:, 0] = 7
        return boxes, x

    graph = traced(function, [torch.rand(3, 4)], ['DeepCopy'], [[0]])
    graph.check(torch.rand(5, 4))


def test_ceil_of_traced_numbers(traced):
    def function(x, factor):
        return x.new_ones(math.ceil(x.shape[0] * factor[0]), math.ceil(2.3))

    graph = traced(function, [torch.rand(3, 4), torch.tensor([1.5])], ['Ceil'], [[0]])
    assert graph.unknown == []
    for rows, factor in ((3, 1.5), (4, 0.5), (7, 2.0)):
        answer = graph.run(torch.rand(rows, 4), torch.tensor([factor]))[0]
        assert answer.shape == (math.ceil(rows * factor), 3)


def test_resizing_no_channels(traced):
    def function(x):
        return F.interpolate(x, scale_factor=2, mode='bilinear'), F.interpolate(x, size=(3, 9), mode='bilinear')

    graph = traced(function, [torch.rand(1, 3, 4, 5)], ['Interpolate'], [[1]])
    graph.check(torch.rand(1, 2, 4, 5), atol=1e-6)
    for answer in (graph.eager(torch.rand(1, 0, 4, 5)), graph.run(torch.rand(1, 0, 4, 5))):
        assert [value.shape for value in answer] == [(1, 0, 8, 10), (1, 0, 3, 9)]
    with pytest.raises(RuntimeError):  # no pixels stay an error
        graph.eager(torch.rand(1, 2, 0, 5))


def test_range_of_a_traced_number_is_told(traced):
    def picks(x):
        return x[range(x.size(0)), [0] * 3]

    def sizes(x):
        return torch.linspace(0, 1, x.shape[0]) + torch.arange(x.size(0))

    assert traced(picks, [torch.rand(3, 4)], [], [[0]]).unknown == []  # what the tracer says of it
    graph = traced(picks, [torch.rand(3, 4)], ['FrozenRange'], [[0]])
    assert len(graph.unknown) == 1 and 'range(x.size(0))' in graph.unknown[0]
    assert traced(sizes, [torch.rand(3, 4)], ['FrozenRange'], [[0]]).unknown == []


def test_new_tensor_of_nested_numbers_and_of_tensors(traced):
    def function(x):
        height, width = x.shape
        return x.new_tensor([[width, height, 3], [1, 2, width]]), x.new_tensor(x[0, :2].double())

    graph = traced(function, [torch.rand(3, 4)], ['NewTensor'], [[0, 1]])
    assert graph.unknown == []
    for size in ((3, 4), (5, 2)):
        answer = graph.run(torch.ones(*size))
        assert answer[0].tolist() == [[size[1], size[0], 3], [1, 2, size[1]]] and answer[0].dtype == 'float32'
        assert answer[1].tolist() == [1, 1] and answer[1].dtype == 'float32'


class TestFieldsInOrder:
    NAMES = ('bboxes', 'scores', 'labels', 'masks', 'priors', 'level_ids', 'kernels', 'score_factors', 'areas', 'inds')

    def test_in_any_process_the_same(self):
        """Of ten names in a set, no process has them in order by chance."""
        from mmengine.structures import InstanceData

        results = InstanceData(**{name: torch.arange(3) for name in self.NAMES})
        before = set(results.keys())
        with RewriteContext({'fields': FieldsInOrder()}):
            assert results.keys() == sorted(self.NAMES)
            assert [name for name, _ in results.items()] == sorted(self.NAMES)
            assert results[:2].keys() == sorted(self.NAMES)
        assert set(results.keys()) == before == set(self.NAMES)
