"""What stands for numbers of rows that values decide, while torch.export runs."""

from __future__ import annotations

import pytest
import torch
from mmengine.structures import InstanceData
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from mmdeploy_lite.errors import ExportError


def above(x):
    return torch.nonzero(x > 0)


@pytest.mark.parametrize(
    'function',
    [
        lambda x: x[:0] if len(above(x)) == 0 else x[above(x)[:, 0]],
        lambda x: x[x > 0] if x[x > 0].shape[0] != 1 else x[:1],
        lambda x: x[(x > 0).nonzero(as_tuple=True)[0]],
        lambda x: x[above(x)].squeeze(1),
        lambda x: torch.stack([x, x], dim=1)[x > 0],
    ],
)
def test_nothing_is_decided_by_the_image_at_hand(symbolic, function):
    graph = symbolic(function, [torch.tensor([1.0, -1, 2, 3])], ['Squeeze'], [[0]])
    for values in ([1.0, -1, 2, 3], [-1.0, 2], [2.0], [3.0, 1, 4, 1, 5, 9]):
        got, wanted = graph.run(torch.tensor(values))[0], torch.tensor(values)[torch.tensor(values) > 0]
        assert got.shape[0] == len(wanted) and (got.reshape(len(wanted), -1)[:, 0] == wanted.numpy()).all()
    assert len(graph.run(torch.tensor([-1.0, -2]))[0]) == 0


def test_fields_of_results(symbolic):
    def function(scores):
        results = InstanceData(scores=scores[scores > 0])
        results.doubled = results.scores * 2
        results['labels'] = results.scores.long()
        results = results[results.scores > 1]
        return results.doubled, results.labels

    graph = symbolic(function, [torch.tensor([0.5, 1.5, -1, 3])], [], [[0]])
    for values in ([0.5, 1.5, -1, 3], [2.5], [0.5, -3]):
        graph.check(torch.tensor(values))
    # without an export they are compared as ever
    with graph.context(), pytest.raises(AssertionError, match='not consistent'):
        InstanceData(scores=torch.ones(3)).labels = torch.ones(2)


def test_fields_of_as_many_rows_as_the_image_has(symbolic):
    def function(scores):
        results = InstanceData(scores=scores)
        results.doubled = results.scores * 2
        return results.doubled

    graph = symbolic(function, [torch.rand(6)], [], [[0]])
    for count in (6, 3, 1):
        graph.check(torch.rand(count))


def test_squeeze_does_not_ask_for_sizes_that_are_free(symbolic):
    graph = symbolic(lambda x: x.squeeze() + 1, [torch.rand(1, 3, 4, 5)], ['Squeeze'], [[2, 3]])
    assert graph.unknown == []
    assert graph.run(torch.rand(1, 3, 2, 7))[0].shape == (3, 2, 7)


def test_numbers_of_python_keep_their_values(symbolic):
    """As SOLO has the places where its levels begin."""

    def function(x):
        ends = x.new_tensor([1, 2, 3]).pow(2).cumsum(0)
        y = x.new_ones(int(ends[-1]))
        y[: int(ends[0])] *= 5
        for level in range(1, 3):
            y[int(ends[level - 1]) : int(ends[level])] *= level
        return y[x[x > 0].long()]

    graph = symbolic(function, [torch.tensor([3, -1, 13])], [], [[0]])
    for values in ([3, -1, 13], [1, 2, 5, 6]):
        graph.check(torch.tensor(values))


def test_numbers_that_change_in_place_are_not_the_first_ones(symbolic):
    def function(x):
        ends = x.new_tensor([1, 2])
        ends += 1
        ends[0] = x.shape[0]
        return x[: int(ends[1])] * ends[0]

    graph = symbolic(function, [torch.tensor([3, 1, 4, 1])], [], [[0]])
    for values in ([3, 1, 4, 1], [2, 7, 1, 8, 2]):
        graph.check(torch.tensor(values))


@pytest.mark.parametrize('axes', [[], [[2, 3]]], ids=['fixed', 'free'])
def test_shape_as_a_tensor(symbolic, axes):
    def function(x):
        height, width = torch._shape_as_tensor(x)[2:]
        return torch.arange(height * width).view(1, 1, *x.shape[2:]) + x

    graph = symbolic(function, [torch.rand(1, 1, 4, 5)], ['ShapeAsTensor'], axes)
    graph.check(torch.rand(1, 1, 4, 5))
    if axes:
        graph.check(torch.rand(1, 1, 7, 3))


def test_a_range_of_floats_that_starts_at_an_integer(symbolic):
    def function(x):
        whole = torch.arange(1, 5.0, dtype=torch.int64) + x.long()
        return x * torch.arange(0, 4.0), x * torch.arange(start=0, end=4.0), x + torch.arange(4), whole

    symbolic(function, [torch.rand(4)], ['FloatRange']).check(torch.rand(4))


def test_resized_to_a_size_that_values_tell(symbolic):
    def function(x, size):
        return torch.nn.functional.interpolate(x, (size[0], size[1]), mode='bilinear', align_corners=True)

    image = torch.rand(1, 2, 4, 5)
    graph = symbolic(function, [image, torch.tensor([7, 6])], ['Interpolate'])
    for size in ([7, 6], [2, 9], [12, 30]):
        got = graph.run(image, torch.tensor(size))[0]
        wanted = torch.nn.functional.interpolate(image, size, mode='bilinear', align_corners=True)
        assert got.shape == wanted.shape and abs(got - wanted.numpy()).max() < 1e-6


def test_resizing_as_many_channels_as_values_tell(symbolic):
    def function(x):
        x = torch.nn.functional.max_pool2d(x, 2)
        chosen = x[0][x[0].amax(dim=(1, 2)) > 0.9]
        return torch.nn.functional.interpolate(chosen[None], scale_factor=4, mode='bilinear')

    image = torch.rand(1, 5, 8, 12, generator=torch.Generator().manual_seed(0))
    image[:, :2] *= 0.5
    graph = symbolic(function, [image], ['Interpolate'], [[2, 3]])
    assert graph.unknown == []
    for given in (image, image[..., :6].repeat(1, 1, 2, 1), image * 0.1):
        expected = function(given) if (given > 0.9).any() else given.new_zeros(1, 0, 16, 24)
        got = graph.run(given)[0]
        assert got.shape == expected.shape
        assert not expected.numel() or abs(got - expected.numpy()).max() < 1e-6


def test_a_mask_of_no_more_than_two_is_not_taken_for_full(symbolic):
    graph = symbolic(lambda x: x[:2][x[:2] > 0], [torch.tensor([1.0, 5])], [])
    for values in ([1.0, 5], [-1.0, 5], [-1.0, -5]):
        graph.check(torch.tensor(values))


def test_a_length_that_goes_anywhere_else_fits_nothing(symbolic):
    """An error while exporting, or of every run: no wrong answer."""
    try:
        graph = symbolic(lambda x: x[x > 0] + torch.arange(len(x[x > 0])), [torch.tensor([1.0, -1, 2, 3])], [], [[0]])
    except ExportError:
        return
    with pytest.raises(Fail, match='broadcast'):
        graph.run(torch.tensor([1.0, 2]))
