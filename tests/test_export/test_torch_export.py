"""The exporter through torch.export, and the audit by its draft mode."""

from __future__ import annotations

import logging
import operator
import sys

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from mmdeploy_lite.errors import ExportError, UnsupportedError
from mmdeploy_lite.export import ExportState, TorchExportExporter, exporting
from mmdeploy_lite.export.allowed import allowed_lines
from mmdeploy_lite.export.draft import value_branches
from mmdeploy_lite.export.scopes import ScopeRecorder, lost_modules
from mmdeploy_lite.export.tracing import is_symbolic
from mmdeploy_lite.rewriters.symbolic_values import Truth
from mmdeploy_lite.rewriting import RewriteContext

pytestmark = pytest.mark.usefixtures('torch_export')

AXES = {'image': {2: 'height', 3: 'width'}}


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def export(what, *args, axes=AXES, names=('image', 'scale_factor'), allowed=()):
    module = what if isinstance(what, nn.Module) else Function(what)
    with exporting(ExportState(dynamic=bool(axes), allowed=tuple(allowed))):
        return TorchExportExporter().export(module.eval(), args, names[: len(args)], ['out'], axes)


def run(graph, **inputs):
    session = onnxruntime.InferenceSession(graph.model.SerializeToString(), providers=['CPUExecutionProvider'])
    return session.run(None, {name: value.numpy() for name, value in inputs.items()})[0]


@pytest.fixture
def image():
    return torch.rand(1, 3, 8, 12, generator=torch.Generator().manual_seed(0))


def test_any_size_from_one_graph(image):
    graph = export(lambda x, factor: x.sum((2, 3)) * factor + x.shape[2], image, torch.tensor([[2.0]]))
    assert [(entry.domain, entry.version) for entry in graph.model.opset_import if not entry.domain] == [('', 18)]
    dims = [dim.dim_param or dim.dim_value for dim in graph.model.graph.input[0].type.tensor_type.shape.dim]
    assert dims == [1, 3, 'height', 'width'] and graph.model.graph.output[0].name == 'out'
    for size in ((8, 12), (5, 7), (1, 1)):
        x = torch.rand(1, 3, *size)
        wanted = x.sum((2, 3)) * 2 + size[0]
        np.testing.assert_allclose(run(graph, image=x, scale_factor=torch.tensor([[2.0]])), wanted, rtol=1e-5)


def test_a_size_that_is_one_in_this_image_is_free_too(image):
    def function(x):
        rows = x[:, :, ::8]  # one of them here
        return rows + torch.arange(rows.shape[2])[:, None]

    graph = export(function, image)
    for height in (8, 40):
        x = torch.rand(1, 3, height, 12)
        np.testing.assert_allclose(run(graph, image=x), function(x))


def test_says_nothing_of_its_own_and_nothing_of_where_it_ran(image, capfd, caplog):
    with caplog.at_level(logging.INFO):
        graph = export(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).requires_grad_(False), image)
        with pytest.raises(ExportError):
            export(lambda x: x + (1 if x.sum() > 0 else 2), image)
    assert capfd.readouterr() == ('', '') and not caplog.records
    assert logging.root.manager.disable == logging.NOTSET
    assert not is_symbolic() and not hasattr(torch.Tensor, '__ceil__')
    assert __file__ not in str(graph.model) and 'torch/' not in str(graph.model)


def test_a_branch_on_a_value_stops_it_by_name(image, code):
    module = code("""
        def forward(x):
            if x.sum() > 0:
                return x
            return x + 1
    """)
    with pytest.raises(ExportError, match=r'user_code.py:4') as error:
        export(module.forward, image)
    assert "target = 'user_code.forward'" in str(error.value)


@pytest.mark.parametrize('taken', [True, False])
def test_a_branch_goes_the_way_that_somebody_vouched_for(image, code, taken):
    module = code("""
        def forward(x):
            found = x.sum() > 0
            if not found:
                return x * 2
            return x + 1
    """)
    allowed = allowed_lines([dict(file='user_code.py', line='if not found', reason='tested', truth=taken)])
    with RewriteContext({'truth': Truth()}):
        graph = export(module.forward, image, allowed=allowed)
        with pytest.raises(ExportError, match='user_code.py:5'):
            export(module.forward, image, allowed=allowed_lines([dict(file='user_code.py', line='', reason='')]))
        assert not bool(torch.zeros(1)) and bool(torch.ones(1))
    np.testing.assert_allclose(run(graph, image=-image), 1 - image if taken else -2 * image)
    assert not bool(torch.zeros(1)) and bool(torch.ones(1))


def test_a_value_that_is_clipped_twice():
    """onnxscript's rule for Min and Max loses the limits of the second."""

    def function(x):
        y = x.sigmoid()
        least, most = torch.tensor([0.2, 0.3, 0.4]), torch.tensor([0.6, 0.7, 0.5])
        one = torch.minimum(torch.maximum(y, least[0]), most[0])
        return one + torch.minimum(torch.maximum(y, least[1]), most[1]) * y.clamp(0, 1).clamp(min=0.4)

    x = torch.linspace(-3, 3, 20)[None]
    graph = export(function, x, axes={})
    np.testing.assert_allclose(run(graph, image=x), function(x), rtol=1e-6)


@pytest.mark.parametrize(
    'function',
    [
        lambda x: x + (1 if x.shape[2] < 100 else 2),  # at most 99
        lambda x: x + (1 if x.shape[3] * 20 > 2000 else 2),  # and at most 100
        lambda x: x.reshape(3, operator.index(x.shape[2]), 12),  # a number
    ],
)
def test_a_size_that_is_compared_or_made_a_number_is_told(image, function):
    with pytest.raises(ExportError):
        export(function, image)
    export(function, image, axes={})


def test_a_size_that_is_at_least_something_is_told():
    large = torch.rand(1, 3, 120, 130)
    with pytest.raises(ExportError, match='axis 2 of image at least 101'):
        export(lambda x: x + (1 if x.shape[2] > 100 else 2), large)
    export(lambda x: x + (1 if x.shape[2] > 32 else 2), large)


def test_conditions_that_every_image_meets_are_not_told():
    import sympy
    from torch.utils._sympy.functions import FloorDiv, Mod

    from mmdeploy_lite.export.torch_export import _is_of_any

    size = sympy.Symbol('s0', integer=True, positive=True)
    count = sympy.Symbol('u0', integer=True)
    other = sympy.Symbol('s1', integer=True, positive=True)
    part = FloorDiv(size, 8)
    met = [sympy.true, sympy.Ne(count, 0), count > 0, sympy.Ne(8 * count * size**2, 0), sympy.Ne(count * part, 0)]
    assert all(map(_is_of_any, met))
    told = [sympy.false, sympy.Eq(count, 0), count > 1, sympy.Ne(size, 3), size < 640]
    told += [sympy.Ne(Mod(size, 2), 0), Mod(size, 2) > 0, size - 640 > 0, sympy.Ne(size - other, 0)]
    told += [part - 20 > 0, sympy.Ne((size - 640) * count, 0), sympy.Ne(FloorDiv(size - 640, 2), 0)]
    assert not any(map(_is_of_any, told))


@pytest.mark.parametrize(
    'condition', ['x.shape[2] % 2', 'x.shape[2] % 2 > 0', 'x.shape[2] - 32 > 0', 'max(x.shape[2] - 32, 0) != 0']
)
def test_a_remainder_or_difference_that_is_not_zero_is_told(image, code, condition):
    module = code(f"""
        def forward(x):
            return x + 1 if {condition} else x * 2
    """)
    graph = export(module.forward, image.repeat(1, 1, 5, 4))
    assert any('sizes are compared: ' in warning.message for warning in graph.warnings)


def test_comparisons_of_sizes_are_told_with_their_line(image, code):
    module = code("""
        def forward(x):
            if x.shape[2] % 8 == 0:
                x = x + 1
            if x.shape[2] == x.shape[3] - 4:
                x = x + 2
            if x.shape[2] * x.shape[3] == 0 or x.numel() > 0:
                return torch.cat([x, x[:, :, : x.shape[2]]], dim=1)
    """)
    graph = export(module.forward, image)
    assert {(item.filename, item.lineno) for item in graph.warnings} == {(module.__file__, 4), (module.__file__, 6)}
    assert 'sizes are compared: ' in graph.warnings[0].message
    assert export(module.forward, image, axes={}).warnings == []


def test_math_ceil_of_a_value_is_one(image):
    import math

    graph = export(lambda x: torch.arange(math.ceil(x.sum() * 10)), image, axes={})
    for factor in (1, 3):
        x = image * factor
        assert len(run(graph, image=x)) == math.ceil(float(x.sum() * 10))


def test_modules_that_are_in_the_graph(image):
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)])
            self.frozen, self.exact = nn.Linear(2, 2), nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1))

        def forward(self, x):
            with torch.autocast('cuda', enabled=False):  # a graph of its own there
                x = self.exact(x)
            return self.layers[1](self.layers[0](x)) + self.constant

    network = Network().eval().requires_grad_(False)
    network.constant = network.frozen(torch.ones(2)).sum()
    recorder = ScopeRecorder(network)
    with recorder:
        graph = export(network, image)
        network.frozen(torch.ones(2))
    assert {'layers.0', 'layers.1', 'exact.0', 'exact.1'} <= graph.modules
    assert lost_modules(recorder, graph.model, graph.modules) == [network.frozen]


def test_what_it_needs(monkeypatch):
    with pytest.raises(UnsupportedError, match='opset 18 or newer, not 17'):
        TorchExportExporter(opset=17)
    monkeypatch.setitem(sys.modules, 'onnxscript', None)
    with pytest.raises(UnsupportedError, match='pip install onnxscript'):
        TorchExportExporter()
    monkeypatch.setattr(torch, '__version__', '2.8.1+cpu')
    with pytest.raises(UnsupportedError, match=r'needs torch 2\.9 or newer, and this is 2\.8\.1'):
        TorchExportExporter()


class TestAudit:
    class Task:
        batch_size, pastes, input_names = 1, True, ['image']

        def __init__(self, function):
            self.function = function

        def wrapper(self):
            return Function(self.function)

        def feeds(self, samples):
            return {'image': np.stack(samples)}

    def test_every_line_once_and_what_this_image_takes(self, code):
        module = code("""
            def forward(x):
                if x.sum() > 1 and x.min() > 0:
                    x = x * 2
                for step in range(2):
                    if not (x > 0).all():
                        x = x + 1
                return x[: int(x[0, 0, 0, 0])]
        """)
        found = value_branches(self.Task(module.forward), np.full((3, 8, 9), 0.25, np.float32), {})
        assert [(branch.lineno, branch.function) for branch in found] == [
            (4, 'forward'),
            (7, 'forward'),
            (9, 'forward'),
        ]
        assert (found[0].code, found[0].taken, found[1].taken) == ('if x.sum() > 1 and x.min() > 0:', 'True', 'True')
        assert f'{module.__file__}:4 in forward' in str(found[0])
        told = allowed_lines([dict(file='user_code.py', line='if not (x > 0).all()', reason='tested', truth=False)])
        args = self.Task(module.forward), np.full((3, 8, 9), 0.25, np.float32), {'truth': Truth()}
        assert [branch.lineno for branch in value_branches(*args, told)] == [4, 9]  # and once more in this process
        assert value_branches(*args) == found

    def test_none_where_there_is_none(self):
        assert value_branches(self.Task(lambda x: torch.where(x > 1, x, -x)), np.ones((3, 8, 9), np.float32), {}) == []

    def test_nms_has_something_to_follow_where_nothing_passed(self):
        from mmdeploy_lite.export import symbolic_ops  # noqa: F401  (registers the operator)

        boxes, scores = torch.rand(4, 4), torch.full((4,), -torch.inf)
        for limit, count in ((100, 2), (1, 1)):
            keep = torch.ops.mmdeploy_lite.non_max_suppression(boxes, scores, 0.5, -3e38, limit)
            assert keep.tolist() == [0] * count

    def test_what_cannot_be_followed(self):
        with pytest.raises(ExportError, match='the audit could not follow the model'):
            value_branches(self.Task(lambda x: x @ x.new_zeros(7, 7)), np.ones((3, 8, 9), np.float32), {})
