"""PyTorch's own functions: adaptive pooling, squeezing, splitting, and the question whether an export runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mmdeploy_lite.rewriters.mmdet_roi import SplitOfOne
from mmdeploy_lite.rewriters.torch_ops import Diag, NotInOnnxExport, Squeeze
from mmdeploy_lite.rewriting import RewriteContext

SIZES = [(4, 4), (8, 8), (16, 16), (20, 20), (64, 64), (45, 60), (1, 7)]


def features(height, width, channels=2):
    generator = torch.Generator().manual_seed(height * 1000 + width)
    return torch.randn(1, channels, height, width, generator=generator)


class TestAdaptiveAvgPool2d:
    @pytest.mark.parametrize('size', SIZES)
    def test_static(self, traced, size):
        def function(x):
            return [F.adaptive_avg_pool2d(x, cells) for cells in (1, 2, 3, 6)]

        graph = traced(function, [features(*size)], ['AdaptiveAvgPool2d'])
        graph.check(features(*size), atol=1e-5)
        assert not {'Shape', 'Loop', 'If'} & set(graph.ops())
        divides = [cells for cells in (2, 3, 6) if all(extent % cells == 0 for extent in size)]
        assert graph.ops().count('AveragePool') == len(divides)

    def test_dynamic(self, both):
        def function(x):
            return [F.adaptive_avg_pool2d(x, cells) for cells in (1, 2, 3, 6)]

        graph = both(function, [features(20, 16)], ['AdaptiveAvgPool2d'], [[2, 3]], dynamic=True)
        assert graph.unknown == []
        for size in SIZES:
            graph.check(features(*size), atol=1e-5)

    @pytest.mark.parametrize(
        ('cells', 'dynamic'),
        [
            ((None, 3), True),
            ((3, None), False),
            ((None, None), True),
            ((2, 5), True),
            ((2, 5), False),
            ([1, 4], False),
            ((1, None), True),
            ((1, 1), True),
        ],
    )
    def test_pairs(self, traced, cells, dynamic):
        axes = [[2, 3]] if dynamic else []
        graph = traced(
            lambda x: F.adaptive_avg_pool2d(x, cells), [features(20, 45)], ['AdaptiveAvgPool2d'], axes, dynamic
        )
        graph.check(features(20, 45), atol=1e-5)
        if dynamic:
            graph.check(features(7, 64), atol=1e-5)

    @pytest.mark.parametrize('dynamic', [False, True])
    def test_to_the_size_of_another_map(self, traced, dynamic):
        def function(x, y):
            return F.adaptive_avg_pool2d(x, y.shape[-2:])

        args, axes = [features(20, 45), features(7, 9)], [[2, 3], [2, 3]] if dynamic else []
        graph = traced(function, args, ['AdaptiveAvgPool2d'], axes, dynamic)
        assert graph.unknown == []
        graph.check(*args, atol=1e-5)
        if dynamic:
            graph.check(features(9, 64), features(3, 5), atol=1e-5)

    def test_module_and_unbatched(self, traced):
        pool = torch.nn.AdaptiveAvgPool2d(3)
        graph = traced(lambda x: pool(x[0]), [features(8, 8)], ['AdaptiveAvgPool2d'])
        graph.check(features(8, 8), atol=1e-5)

    def test_channels_and_batch(self, traced):
        x = torch.randn(3, 5, 7, 11, generator=torch.Generator().manual_seed(0))
        traced(lambda x: F.adaptive_avg_pool2d(x, 4), [x], ['AdaptiveAvgPool2d']).check(x, atol=1e-5)


class TestSqueeze:
    @pytest.mark.parametrize(
        'function',
        [
            torch.squeeze,
            lambda x: torch.squeeze(x, 1),
            lambda x: torch.squeeze(x, dim=-1),
            lambda x: torch.squeeze(x, 0),
            lambda x: x.squeeze(),
            lambda x: x.squeeze(3),
            lambda x: x.squeeze(dim=1),
            lambda x: x.squeeze((1, 3)),
            lambda x: x.squeeze((0, -1)),
            lambda x: x[:1, :, :1].squeeze(),
            lambda x: x[0, 0, 0, 0].squeeze(),
        ],
    )
    def test_forms(self, traced, function):
        x = torch.randn(4, 1, 3, 1)
        graph = traced(function, [x], ['Squeeze'], [[0, 2]])
        graph.check(x)
        assert 'If' not in graph.ops()

    def test_size_that_changes_is_not_taken_for_known(self, traced):
        def function(x):
            y = x.squeeze()
            return y.new_full((y.size(0),), 7.0)

        graph = traced(function, [torch.randn(4, 1)], ['Squeeze'], [[0]])
        graph.check(torch.randn(9, 1))

    def test_integers_and_booleans(self, traced):
        graph = traced(lambda x: [(x > 0).squeeze(1), x.long().squeeze(1)], [torch.randn(4, 1)], ['Squeeze'], [[0]])
        graph.check(torch.randn(6, 1))

    def test_axis_out_of_range_is_an_error_as_before(self):
        with RewriteContext({'squeeze': Squeeze()}), pytest.raises(IndexError):
            torch.zeros(1, 1).squeeze(5)


class TestSplitOfOne:
    def test_one_part(self, traced):
        def function(x):
            return [part + 0 for part in x.split((len(x),))]

        graph = traced(function, [torch.randn(4, 3)], ['SplitOfOne'], [[0]])
        graph.check(torch.randn(9, 3))
        assert 'Split' not in graph.ops()

    def test_one_part_as_long_as_a_size_of_the_graph(self, both):
        def function(x):
            return [part + 0 for part in x.split((x.shape[0],))]

        graph = both(function, [torch.randn(4, 3)], ['SplitOfOne'], [[0]])
        graph.check(torch.randn(9, 3))
        assert 'Split' not in graph.ops() and graph.unknown == []

    @pytest.mark.parametrize('arguments', [(2,), ([1, 3],), ([4, 0],), ((1, 2), 1), ([3], 1), (3, 1)])
    def test_other_splits_are_as_before(self, arguments):
        x = torch.arange(12.0).view(4, 3)
        expected = x.split(*arguments)
        with RewriteContext({'split': SplitOfOne()}):
            answer = x.split(*arguments)
        assert len(answer) == len(expected) and all(map(torch.equal, answer, expected))

    def test_one_part_of_a_wrong_size_is_an_error_as_before(self):
        with RewriteContext({'split': SplitOfOne()}), pytest.raises(RuntimeError):
            torch.zeros(4, 3).split([2])


class TestNewTensor:
    @pytest.mark.parametrize(
        'make',
        [
            lambda x, n: x.new_tensor([n[0], n[1]]),
            lambda x, n: x.new_tensor((n[0], 3, 0.5)),
            lambda x, n: x.new_tensor([n[0], n[1]], dtype=torch.float64),
            lambda x, n: x.new_tensor([1 / n[0], 2.0], device=x.device),
            lambda x, n: x.new_tensor([1, 2]),
            lambda x, n: x.new_tensor(5.0),
            lambda x, n: x.new_tensor([[1, 2], [3, 4]]),
        ],
    )
    def test_traced_numbers_stay_traced(self, traced, make):
        args = [torch.randn(4), torch.tensor([2.0, 3.0])]
        graph = traced(lambda x, n: make(x, n) + 0 * x[0].to(make(x, n).dtype), args, ['NewTensor'])
        assert graph.unknown == []
        graph.check(torch.randn(4), torch.tensor([7.0, -1.0]), rtol=1e-6)


class TestNotInOnnxExport:
    @staticmethod
    def asked_by(name):
        scope = {'torch': torch, '__name__': name}
        exec('def ask():\n    return torch.onnx.is_in_onnx_export()', scope)
        return scope['ask']

    def test_libraries_are_told_no_and_torch_the_truth(self, monkeypatch):
        """Whatever asks; also in a nested context, whose origin is the outer one's answer."""
        monkeypatch.setattr(torch.onnx, 'is_in_onnx_export', lambda: True)
        with RewriteContext({'outer': NotInOnnxExport()}):
            for name, answer in (('mmdet.x', False), ('torch.nn.x', True), ('torch', True), ('torchvision', False)):
                assert self.asked_by(name)() is answer
            with RewriteContext({'inner': NotInOnnxExport()}):
                for name, answer in (('mmdet.x', False), ('torch.nn.x', True), ('torch', True)):
                    assert self.asked_by(name)() is answer

    def test_while_tracing(self, traced):
        def function(x):
            from mmdet.structures.bbox import distance2bbox

            return distance2bbox(x[:, :2], x, max_shape=None) + (100 if torch.onnx.is_in_onnx_export() else 0)

        graph = traced(function, [torch.randn(4, 4)], ['NotInOnnxExport'], [[0]])
        graph.check(torch.randn(5, 4))
        with pytest.raises(AssertionError):  # without it, the export branch is in the graph
            traced(function, [torch.randn(4, 4)], [], [[0]]).check(torch.randn(5, 4))


def test_averaging_matrix_rows_sum_to_one():
    from mmdeploy_lite.rewriters.torch_ops import averaging_matrix

    for size in (1, 5, 45, 64):
        for cells in (1, 2, 3, 6):
            matrix = averaging_matrix(size, cells, torch.zeros(1))
            assert matrix.shape == (cells, size)
            np.testing.assert_allclose(matrix.sum(dim=1), 1, rtol=1e-6)


class TestAdaptiveMaxPool2d:
    @pytest.mark.parametrize('size', SIZES)
    def test_static(self, traced, size):
        graph = traced(
            lambda x: [F.adaptive_max_pool2d(x, cells) for cells in (1, 3, (2, 5), (None, 4))],
            [features(*size)],
            ['AdaptiveMaxPool2d'],
        )
        graph.check(features(*size))
        graph.check(features(*size) - 10)

    def test_dynamic(self, both):
        def function(x, y):
            return [F.adaptive_max_pool2d(x, (3, 2)), F.adaptive_max_pool2d(x, y.shape[2:])]

        args = [features(20, 16), features(7, 5)]
        graph = both(function, args, ['AdaptiveMaxPool2d'], [[2, 3], [2, 3]], dynamic=True)
        assert graph.unknown == []
        graph.check(features(45, 60), features(9, 13))
        graph.check(features(1, 7), features(2, 2))


class TestDiag:
    @pytest.mark.parametrize('fill', [1.0, float('-inf')])
    def test_vector(self, traced, fill):
        graph = traced(lambda x: torch.diag(x * fill), [torch.rand(5) + 1], ['Diag'], [[0]])
        for length in (5, 1, 9):
            graph.check(torch.rand(length) + 1)

    def test_others_stay(self):
        with RewriteContext({'diag': Diag()}):
            assert torch.equal(torch.diag(torch.eye(3)), torch.ones(3))
            assert torch.equal(torch.diag(torch.ones(2), 1), torch.tensor([[0.0, 1, 0], [0, 0, 1], [0, 0, 0]]))
