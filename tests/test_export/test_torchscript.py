"""The exporter: what it hands on, and what it says when it fails."""

from __future__ import annotations

import errno
import logging
import warnings

import pytest
import torch
from torch import nn

from mmdeploy_lite.errors import DeployError, ExportError, UnsupportedError
from mmdeploy_lite.export import ExportState, current_export, exporting
from mmdeploy_lite.export.explain import explain
from mmdeploy_lite.export.exporter import explained
from mmdeploy_lite.export.shapes import python_int, python_shape, static_size, tracing_paused
from mmdeploy_lite.export.tracing import note_rejected


def test_is_silent_and_collects_only_the_tracers_warnings(export, image, capfd, caplog):
    def function(x):
        warnings.warn('of a library', UserWarning, stacklevel=1)
        return x + (1 if x.sum() > 0 else 2)

    with warnings.catch_warnings(record=True) as caught, caplog.at_level(logging.WARNING):
        warnings.simplefilter('always')
        graph = export(function, image())
    assert caught == [] and caplog.records == []
    assert capfd.readouterr() == ('', '')
    assert len(graph.warnings) == 1
    assert graph.warnings[0].filename == __file__


def test_warnings_come_every_time(export, image):
    """Python shows a warning of one line once; a second export must see it again."""

    def function(x):
        return x + (1 if x.sum() > 0 else 2)

    assert [len(export(function, image()).warnings) for _ in range(2)] == [1, 1]


def test_logger_is_left_as_it_was(export, image):
    level = logging.getLogger('torch.onnx').level
    export(lambda x: x + 1, image())
    with pytest.raises(ExportError):
        export(lambda x: x + nonsense, image())  # noqa: F821
    assert logging.getLogger('torch.onnx').level == level


def test_opset_and_names(export, image):
    model = export(lambda x, s: x * s[0, 0], image(), torch.ones(1, 2), dynamic=True).model
    assert [entry.version for entry in model.opset_import] == [17]
    assert [value.name for value in model.graph.input] == ['image', 'scale_factor']
    dims = [dim.dim_param or dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    assert dims == [1, 3, 'height', 'width']


def test_failure_names_the_class_the_line_and_the_rewriter_to_write(code, export, image):
    module = code("""
        class SpecialHead(torch.nn.Module):
            def predict_by_feat(self, x):
                return torch.linalg.eigh(x[0, :, :3, :3])[0].cholesky_inverse_of_no_kind()

            def forward(self, x):
                return self.predict_by_feat(x)
        """)
    with pytest.raises(ExportError) as caught:
        export(module.SpecialHead(), image())
    text = str(caught.value)
    assert 'AttributeError' in text
    assert 'user_code.SpecialHead.predict_by_feat' in text
    assert f'{module.__file__}:5' in text
    assert "target = 'user_code.SpecialHead.predict_by_feat'" in text
    assert 'class MyPredictByFeat(FunctionRewriter)' in text
    assert "rewriters=dict(mine=dict(type='MyPredictByFeat'))" in text


def test_operator_without_a_symbolic(export, image):
    with pytest.raises(ExportError, match='UnsupportedOperatorError') as caught:
        export(lambda x: torch.linalg.eigh(x[0, :, :3, :3])[0], image())
    assert str(caught.value).startswith('tracing failed with')


def test_own_errors_come_through_as_they_are(export, image):
    def function(x):
        raise UnsupportedError('not this')

    with pytest.raises(UnsupportedError, match='^not this$'):
        export(function, image())


def test_interrupt_comes_through(export, image):
    def function(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(function, image())
    assert not torch.jit.is_tracing()
    assert not torch.onnx.is_in_onnx_export()


def test_explain_without_a_line_of_a_model():
    assert explain(RuntimeError('first\nsecond')) == 'tracing failed with RuntimeError: first'
    assert explain(RuntimeError()) == 'tracing failed with RuntimeError: '
    assert issubclass(ExportError, DeployError)


def test_state():
    assert current_export() is None
    note_rejected(True)  # outside of an export, nobody asks
    with exporting(ExportState(dynamic=True)) as outer:
        assert current_export() is outer
        note_rejected(True)
        with exporting(ExportState()) as inner:
            assert current_export() is inner and not inner.rejected_pending
        assert current_export() is outer and outer.rejected_pending
    with pytest.raises(ZeroDivisionError), exporting(ExportState()):
        1 / 0  # noqa: B018
    assert current_export() is None


class TestSizes:
    """Inside a trace, where ``tensor.shape`` holds traced numbers."""

    def inside(self, export, image, look):
        seen = []

        class Looks(nn.Module):
            def forward(self, x):
                seen.append(look(x))
                return x + 1

        graph = export(Looks(), image(height=12, width=16), dynamic=True)
        assert graph.warnings == []
        return seen[-1]

    def test_python_shape(self, export, image):
        shape = self.inside(export, image, python_shape)
        assert shape == (1, 3, 12, 16) and {type(extent) for extent in shape} == {int}

    def test_python_int(self, export, image):
        value = self.inside(export, image, lambda x: python_int(x.size(1)))
        assert value == 3 and type(value) is int

    @pytest.mark.parametrize(('state', 'expected'), [(None, (12, 16)), (False, (12, 16)), (True, None)])
    def test_static_size(self, export, image, state, expected):
        def look(x):
            if state is None:
                return static_size(x)
            with exporting(ExportState(dynamic=state)):
                return static_size(x)

        assert self.inside(export, image, look) == expected

    def test_what_runs_while_paused_is_not_recorded(self, export, image):
        def function(x):
            with tracing_paused():
                constant = torch.linspace(0, 1, 3).cumsum(0)
            return x * constant.view(1, 3, 1, 1)

        assert {node.op_type for node in export(function, image()).model.graph.node} <= {'Mul', 'Constant'}

    def test_tracing_goes_on_after_an_error(self, export, image):
        def function(x):
            try:
                with tracing_paused():
                    raise ValueError
            except ValueError:
                return x.exp()

        assert [node.op_type for node in export(function, image()).model.graph.node] == ['Exp']


def test_a_full_disk_is_not_the_models_fault():
    with pytest.raises(OSError, match='No space left'), explained():
        raise OSError(errno.ENOSPC, 'No space left on device')
    with pytest.raises(ExportError, match='OSError'), explained():
        raise OSError(errno.EIO, 'of the model')
