"""Sizes that a fixed image size decides are numbers; what the image's content or another input decides is not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mmdeploy_lite.export import ExportState, exporting, loops
from mmdeploy_lite.export.audit import sizes_from_values
from mmdeploy_lite.export.shapes import sizes_traced
from mmdeploy_lite.rewriters.torch_ops import FixedSizes
from mmdeploy_lite.rewriting import RewriteContext


def traced_sizes(state: ExportState, run=lambda x: [*x.shape, *x.size(), x.size(2)]):
    """What ``run`` sees of a tensor's size under the tracer."""
    seen = []

    class Model(nn.Module):
        def forward(self, x):
            seen.extend(run(x * 2))
            return x + 1

    with RewriteContext({'fixed_sizes': FixedSizes()}), exporting(state):
        torch.jit.trace(Model(), torch.zeros(1, 3, 4, 6), check_trace=False)
    return seen


def test_numbers_where_sizes_are_fixed():
    seen = traced_sizes(ExportState(fixed_sizes=True))
    assert seen == [1, 3, 4, 6, 1, 3, 4, 6, 4]
    assert {type(size) for size in seen} == {int}


@pytest.mark.parametrize('state', [ExportState(), ExportState(dynamic=True)])
def test_traced_otherwise(state):
    assert {type(size) for size in traced_sizes(state)} == {torch.Tensor}


def test_traced_again_in_the_post_processing():
    def run(x):
        with sizes_traced():
            inside = x.shape[2]
        return [inside, x.shape[2]]

    state = ExportState(fixed_sizes=True)
    assert [type(size) for size in traced_sizes(state, run)] == [torch.Tensor, int]
    assert state.fixed_sizes


def test_sizes_that_the_content_decides_are_named(traced):
    graph = traced(lambda x: x[x > 0], [torch.randn(9)], ['FixedSizes'])
    assert [line.split()[0] for line in sizes_from_values(graph.model)] == ['NonZero']
    assert sizes_from_values(traced(lambda x: x * 2, [torch.randn(9)], ['FixedSizes']).model) == []


def test_in_a_window_sizes_are_fixed_too(traced):
    """Of an image of any size, the windows of slide inference are of one."""

    def windows(x):
        rows = x.unflatten(0, (-1, 3))
        return loops.end(network(loops.begin(rows)), rows).sum()

    def network(row):
        return row[row > 0].sum()

    graph = traced(windows, [torch.randn(9)], ['FixedSizes'], [[0]], dynamic=True)
    assert [line.split()[0] for line in sizes_from_values(graph.model, only_loops=True)] == ['NonZero']
    outside = traced(lambda x: x[x > 0], [torch.randn(9)], ['FixedSizes'])
    assert sizes_from_values(outside.model, only_loops=True) == []
