"""The built-in rewriters as a whole: they come, and they go without a trace."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from types import ModuleType

import pytest

from mmdeploy_lite.deploy_config import deploy_section, plain_dict, resolve_deploy_config
from mmdeploy_lite.errors import RewriteError
from mmdeploy_lite.loading import read_config
from mmdeploy_lite.loading.packages import find_package_config
from mmdeploy_lite.registry import REWRITERS
from mmdeploy_lite.rewriting import RewriteContext, build_rewriters

SHIPPED = sorted(
    str(path.relative_to(folder))
    for folder in [find_package_config('mmdeploy_lite::_base_/onnxruntime.py').parents[1]]
    for path in folder.glob('mm*/*.py')
)
LIBRARIES = ('mmdet.models', 'mmdet.apis', 'mmdet.utils', 'mmseg.models', 'mmseg.apis', 'mmcv.ops', 'torch.onnx')

CLASSES: set[type] = set()


def rewriters_of(name):
    section = deploy_section(read_config(f'mmdeploy_lite::{name}'), name)
    return build_rewriters(resolve_deploy_config(plain_dict(section)).rewriters, REWRITERS)


def snapshot():
    """Every function and class that a loaded module holds, and every attribute of the classes that targets are on.

    Plain values are left out: modules count garbage collections and the like while a test runs.
    """
    found = {}
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and not name.startswith(('_pytest', 'pytest', 'py.')):
            found.update({(name, key): value for key, value in vars(module).items() if callable(value)})
    for owner in CLASSES:
        for cls in [owner, *owner.__subclasses__()]:
            for attribute, value in vars(cls).items():
                found[f'{cls.__module__}.{cls.__qualname__}', attribute] = value
    return found


def owner_of(path):
    parts = path.split('.')
    for count in range(len(parts) - 1, 0, -1):
        try:
            owner = importlib.import_module('.'.join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:-1]:
            owner = getattr(owner, part)
        return owner
    raise AssertionError(path)


@pytest.fixture(scope='module', autouse=True)
def libraries():
    for name in LIBRARIES:
        importlib.import_module(name)
    for name in SHIPPED:
        for path in [path for rewriter in rewriters_of(name).values() for path in rewriter.targets]:
            if isinstance(owner := owner_of(path), type):
                CLASSES.add(owner)


def test_there_are_shipped_configs():
    assert {'mmdet/detection_onnxruntime.py', 'mmseg/segmentation_onnxruntime.py'} <= set(SHIPPED)
    largest = (
        rewriters_of('mmdet/panoptic_onnxruntime.py'),
        rewriters_of('mmseg/segmentation_onnxruntime.py'),
    )
    assert all(any(rewriters_of(name).keys() <= rewriters.keys() for rewriters in largest) for name in SHIPPED)


@pytest.mark.parametrize('name', ['mmdet/panoptic_onnxruntime.py', 'mmseg/segmentation_onnxruntime.py'])
def test_everything_is_what_it_was(name):
    rewriters = rewriters_of(name)
    before = snapshot()
    with pytest.raises(ZeroDivisionError), RewriteContext(rewriters, required=rewriters) as context:
        inside = snapshot()
        1 / 0  # noqa: B018
    after = snapshot()
    assert not context.skipped
    assert before.keys() == after.keys()
    assert [name for name in before if before[name] is not after[name]] == []

    # and meanwhile every target was replaced, wherever it is held
    replaced = {id(before[name]): name for name in before if before[name] is not inside.get(name)}
    own = {cls.__module__ for rewriter in rewriters.values() for cls in type(rewriter).__mro__}
    for rewriter in rewriters.values():
        for path in rewriter.targets:
            owner, attribute = owner_of(path), path.rsplit('.', 1)[1]
            original = inspect.getattr_static(owner, attribute)
            if attribute in vars(owner):
                assert id(original) in replaced, path
            held = [
                key for key in before if before[key] is original and isinstance(owner, ModuleType) and key[0] not in own
            ]
            assert [key for key in held if inside[key] is original] == [], path


def test_every_target_exists_in_the_installed_libraries():
    """A target that a release renames is skipped without a word in a deployment; here it is not."""
    for name in sorted(REWRITERS.module_dict):
        cls = REWRITERS.get(name)
        if not cls.__module__.startswith('mmdeploy_lite.'):
            continue
        targets = (cls.target,) if isinstance(cls.target, str) else cls.target
        for path in targets:
            assert inspect.getattr_static(owner_of(path), path.rsplit('.', 1)[1]) is not None
        assert targets and cls.__doc__, name


def test_signature_is_the_targets_after_origin():
    """Named arguments of the original arrive under their names, in the original's order."""
    for shipped in SHIPPED:
        for key, rewriter in rewriters_of(shipped).items():
            if key == 'detr_pre_transformer':  # whose targets do not agree on names
                continue
            own = [p for p in inspect.signature(type(rewriter).__call__).parameters.values()][2:]
            if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in own):
                continue
            for path in rewriter.targets:
                original = inspect.getattr_static(owner_of(path), path.rsplit('.', 1)[1])
                try:
                    expected = list(inspect.signature(original).parameters.values())
                except (TypeError, ValueError):  # written in C
                    continue
                if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in expected):
                    continue
                skip = int(isinstance(owner_of(path), type))  # self has a better name
                assert [p.name for p in own][skip:] == [p.name for p in expected][skip:], key
                assert [p.default for p in own][skip:] == [p.default for p in expected][skip:], key


def test_built_in_of_a_library_that_is_not_installed_is_skipped(monkeypatch):
    """As on a machine with mmseg and without mmdet."""
    rewriters = rewriters_of('mmdet/detection_onnxruntime.py')
    for name in [name for name in sys.modules if name.split('.')[0] == 'mmdet']:
        monkeypatch.delitem(sys.modules, name)

    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None if name == 'mmdet' else find_spec(name))
    with RewriteContext(rewriters) as context:
        pass
    assert context.skipped and all(path.startswith('mmdet.') for path in context.skipped)
    with pytest.raises(RewriteError), RewriteContext(rewriters, required=['multiclass_nms']):
        pass
