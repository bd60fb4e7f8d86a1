"""The stand-in for mmcv._ext: when it is put in place, and what it answers."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import pkgutil
import subprocess
import sys
import textwrap
from pathlib import Path

import mmcv
import mmcv.ops
import pytest
import torch

from mmdeploy_lite import ops
from mmdeploy_lite.errors import DeployError
from mmdeploy_lite.ops.extension import GROUPS

REPO = Path(__file__).parents[2]


@pytest.fixture(scope='module')
def lite() -> None:
    """With a compiled mmcv there is nothing to look at."""
    if not ops.stand_ins_active():
        pytest.skip('a compiled mmcv is installed')


def run(code: str, path: Path) -> str:
    """What a fresh Python prints, with ``path`` before everything else it can import."""
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([str(path), str(REPO)]))
    done = subprocess.run(
        [sys.executable, '-c', textwrap.dedent(code)], env=env, cwd=path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def fake_mmcv(path: Path, **files: str) -> Path:
    """A package called mmcv with the given files."""
    (path / 'mmcv').mkdir()
    for name, text in {'__init__.py': '', **files}.items():
        (path / 'mmcv' / name).write_text(text)
    return path


# When it is put in place


def test_extension_that_is_there_is_used(tmp_path: Path) -> None:
    path = fake_mmcv(tmp_path, **{'_ext.py': 'compiled = True'})
    out = run(
        """
        import sys
        import mmdeploy_lite.ops as ops
        assert 'mmcv._ext' not in sys.modules
        assert ops.install() is False and not ops.stand_ins_active()
        import mmcv._ext
        assert mmcv._ext.compiled
        assert ops.install() is False and sys.modules['mmcv._ext'] is mmcv._ext
        """,
        path,
    )
    assert out == ''


def test_extension_that_fails_to_load_is_not_hidden(tmp_path: Path) -> None:
    path = fake_mmcv(tmp_path, **{'_ext' + importlib.machinery.EXTENSION_SUFFIXES[0]: 'not a shared library'})
    run(
        """
        import mmdeploy_lite.ops as ops
        assert ops.install() is False and not ops.stand_ins_active()
        try:
            import mmcv._ext
        except ImportError as error:
            assert not isinstance(error, ModuleNotFoundError), error
        else:
            raise AssertionError('it loaded')
        """,
        path,
    )


def test_extension_from_a_finder_of_its_own_is_used(tmp_path: Path) -> None:
    """Editable installations bring their own finders."""
    path = fake_mmcv(tmp_path)
    run(
        """
        import importlib.machinery
        import sys

        class Loader:
            def create_module(self, spec):
                return None

            def exec_module(self, module):
                module.compiled = True

        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name == 'mmcv._ext':
                    return importlib.machinery.ModuleSpec(name, Loader(), origin='elsewhere')

        sys.meta_path.append(Finder())
        import mmdeploy_lite.ops as ops
        assert ops.install() is False
        import mmcv._ext
        assert mmcv._ext.compiled
        """,
        path,
    )


def test_extension_loaded_by_hand_is_kept(tmp_path: Path) -> None:
    """Also one without a spec, which ``find_spec`` cannot answer for."""
    path = fake_mmcv(tmp_path)
    run(
        """
        import sys
        import types
        module = types.ModuleType('mmcv._ext')
        sys.modules['mmcv._ext'] = module
        import mmdeploy_lite.ops as ops
        assert ops.install() is False and sys.modules['mmcv._ext'] is module
        """,
        path,
    )


def test_without_mmcv_nothing_happens(tmp_path: Path) -> None:
    out = run(
        """
        import sys

        class Blocked:
            def find_spec(self, name, path=None, target=None):
                if name == 'mmcv':
                    raise ModuleNotFoundError("No module named 'mmcv'", name='mmcv')

        sys.meta_path.insert(0, Blocked())
        import mmdeploy_lite.ops as ops
        assert ops.install() is False and not ops.stand_ins_active()
        assert 'mmcv._ext' not in sys.modules
        """,
        tmp_path,
    )
    assert out == ''


def test_mmcv_that_cannot_be_imported_says_why(tmp_path: Path) -> None:
    path = fake_mmcv(tmp_path, **{'__init__.py': 'import a_module_it_needs'})
    run(
        """
        try:
            import mmdeploy_lite.ops
        except ModuleNotFoundError as error:
            assert error.name == 'a_module_it_needs'
        else:
            raise AssertionError('imported')
        """,
        path,
    )


def test_missing_extension_is_replaced_once_with_one_line(tmp_path: Path) -> None:
    path = fake_mmcv(tmp_path)
    out = run(
        """
        import importlib
        import sys
        import mmdeploy_lite.ops as ops
        assert ops.stand_ins_active()
        first = sys.modules['mmcv._ext']
        assert ops.install() is True
        importlib.reload(ops)
        assert sys.modules['mmcv._ext'] is first
        import mmcv._ext
        from mmcv import _ext
        assert mmcv._ext is first and _ext is first
        """,
        path,
    )
    assert len(out.splitlines()) == 1
    assert 'INFO' in out and 'no compiled extension' in out and 'mmdeploy_lite.ops' in out


# What it answers


@pytest.mark.usefixtures('lite')
class TestStandIn:
    def test_is_a_module_like_any_other(self) -> None:
        module = importlib.import_module('mmcv._ext')
        assert mmcv._ext is module is sys.modules['mmcv._ext']
        spec = importlib.util.find_spec('mmcv._ext')
        assert spec is module.__spec__
        assert spec.name == module.__name__ == 'mmcv._ext' and spec.parent == module.__package__ == 'mmcv'
        assert spec.loader is not None and spec.origin == 'mmdeploy_lite.ops'
        assert repr(module) == "<module 'mmcv._ext' (mmdeploy_lite.ops)>"

    def test_special_names_are_absent(self) -> None:
        """An answer to ``__path__`` would make it a package, to ``__all__`` would break ``import *``."""
        for name in ('__path__', '__all__', '__wrapped__', '__file__', '__torch_function__'):
            assert not hasattr(mmcv._ext, name)
        with pytest.raises(ModuleNotFoundError, match='not a package'):
            importlib.import_module('mmcv._ext.nms')

    def test_unknown_operator_fails_when_called_and_names_itself(self) -> None:
        operator = mmcv._ext.three_nn_forward
        assert callable(operator) and operator.__name__ == 'three_nn_forward'
        with pytest.raises(NotImplementedError, match=r"'three_nn_forward'.*mmcv-lite.*full mmcv"):
            operator(torch.zeros(1), factor=2)
        with pytest.raises(DeployError, match="'border_align_forward'"):
            mmcv.ops.border_align(torch.zeros(1, 4, 2, 2), torch.zeros(1, 4, 4), 1)

    def test_all_that_is_promised_is_there(self) -> None:
        for name in (
            'nms',
            'softnms',
            'nms_match',
            'roi_align_forward',
            'roi_align_backward',
            'roi_pool_forward',
            'roi_pool_backward',
            'deform_conv_forward',
            'deform_conv_backward_input',
            'deform_conv_backward_parameters',
            'modulated_deform_conv_forward',
            'modulated_deform_conv_backward',
            'ms_deform_attn_forward',
            'ms_deform_attn_backward',
            'sigmoid_focal_loss_forward',
            'sigmoid_focal_loss_backward',
        ):
            assert name in vars(mmcv._ext)

    def test_every_file_of_operators_is_listed(self) -> None:
        listed = {name for group in GROUPS for name in importlib.import_module(f'mmdeploy_lite.ops.{group}').__all__}
        found = set()
        for info in pkgutil.iter_modules(ops.__path__):
            found.update(getattr(importlib.import_module(f'mmdeploy_lite.ops.{info.name}'), '__all__', ()))
        assert listed == found

    def test_versions_are_not_made_up(self) -> None:
        assert mmcv.ops.get_compiler_version() == mmcv.ops.get_compiling_cuda_version() == 'n/a'


@pytest.mark.parametrize('package', ['mmcv.ops', 'mmdet.models', 'mmseg.models'])
def test_every_module_imports(package: str) -> None:
    """The reason for all this. Of the libraries, only what needs no further package."""
    root = importlib.import_module(package)
    names = [info.name for info in pkgutil.walk_packages(root.__path__, package + '.')]
    assert len(names) > 50
    for name in names:
        importlib.import_module(name)
