"""What lies between two marks runs once for each item."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from mmdeploy_lite.errors import ExportError
from mmdeploy_lite.export.loops import begin, distinct_names, end
from mmdeploy_lite.export.optimize import optimize


class Rows(nn.Module):
    """A network over strips of 8 rows, with something in its loop that is computed outside."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def strips(self, x):
        return x.unflatten(2, (-1, 8)).permute(2, 0, 1, 3, 4)

    def one(self, strip, mean):
        return self.conv(strip).relu() + mean

    def forward(self, x):
        strips, mean = self.strips(x), x.mean()
        return end(self.one(begin(strips), mean), strips).sum(0)


def plain(module, x):
    return sum(module.one(strip, x.mean()) for strip in module.strips(x))


def run(model, x):
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {'image': x.numpy()})[0]


@pytest.mark.parametrize('height', [8, 24, 40])
def test_every_item_goes_through(export, image, height):
    module = Rows()
    model = export(module, image(0, 24, 16), dynamic=True).model
    onnx.checker.check_model(model, full_check=True)
    assert {node.domain for node in model.graph.node} == {''}
    assert 'mmdeploy_lite.marks' not in {entry.domain for entry in model.opset_import}
    x = image(1, height, 16)
    with torch.no_grad():
        wanted = plain(module, x).numpy()
    for graph in (model, optimize(model)):
        assert [node.op_type for node in graph.graph.node].count('Loop') == 1
        np.testing.assert_allclose(run(graph, x), wanted, rtol=1e-5, atol=1e-3)


def test_what_is_in_the_loop_cannot_be_read_behind_it(export, image):
    class Leaks(Rows):
        def forward(self, x):
            strips = self.strips(x)
            inside = self.conv(begin(strips))
            return end(inside.relu(), strips).sum(0) + inside

    with pytest.raises(ExportError, match='left other than at its end'):
        export(Leaks(), image(0, 24, 16), dynamic=True)


def test_a_loop_without_an_end(export, image):
    class Endless(Rows):
        def forward(self, x):
            return self.conv(begin(self.strips(x)))

    with pytest.raises(ExportError, match='has 0 ends'):
        export(Endless(), image(0, 24, 16), dynamic=True)


def test_two_loops(export, image):
    class Twice(Rows):
        def forward(self, x):
            strips = self.strips(x)
            first = end(self.one(begin(strips), 0), strips)
            return end(begin(first) * 2, first).sum(0)

    module = Twice()
    model = export(module, image(0, 24, 16), dynamic=True).model
    x = image(1, 40, 16)
    with torch.no_grad():
        wanted = sum(module.one(strip, 0) * 2 for strip in module.strips(x)).numpy()
    np.testing.assert_allclose(run(optimize(model), x), wanted, rtol=1e-5, atol=1e-3)


def test_names_in_a_body_are_its_own(export, image):
    """ONNX Runtime's optimizer names constants of the body as those outside, which the checker refuses."""
    model = export(Rows(), image(0, 24, 16), dynamic=True).model
    (loop,) = [node for node in model.graph.node if node.op_type == 'Loop']
    (body,) = [attribute.g for attribute in loop.attribute if attribute.name == 'body']
    (conv,) = [node for node in body.node if node.op_type == 'Conv']
    weight = next(item for item in model.graph.initializer if item.name == conv.input[1])
    body.initializer.append(weight)
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * 0, weight.name))
    user = onnx.helper.make_node('ReduceSum', [weight.name], ['unused'])
    model.graph.node.append(user)
    distinct_names(model.graph)
    assert conv.input[1] == body.initializer[0].name != weight.name == user.input[0]
    onnx.checker.check_model(model, full_check=True)
    x = image(1, 40, 16)
    with torch.no_grad():
        np.testing.assert_allclose(run(model, x), plain(Rows(), x).numpy(), rtol=1e-5, atol=1e-3)
