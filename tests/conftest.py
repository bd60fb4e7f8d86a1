"""What every test starts from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# Before torch is imported: test workers share the cores, and more threads than cores only slow them down.
os.environ.setdefault('OMP_NUM_THREADS', '1')


@pytest.fixture(scope='session')
def real_models() -> Path:
    """The folder with the real trained models; skips where it is absent."""
    folder = Path(__file__).resolve().parents[2] / 'shared' / 'models'
    if not folder.is_dir():
        pytest.skip(f'no real models in {folder}')
    return folder


@pytest.fixture(scope='session')
def needs_torch() -> Callable[[int, int, str], None]:
    """Skips where torch is older than something needs."""
    import torch

    def check(major: int, minor: int, what: str) -> None:
        if torch.__version__ < (major, minor):
            pytest.skip(f'{what} needs torch {major}.{minor}, and this is {torch.__version__}')

    return check


@pytest.fixture(scope='session')
def torch_export(needs_torch: Callable[[int, int, str], None]) -> None:
    """Skips where torch is too old for the exporter through ``torch.export``."""
    from mmdeploy_lite.export.torch_export import NEEDS

    needs_torch(*NEEDS, 'the exporter through torch.export')


@contextmanager
def own_scope() -> Iterator[None]:
    """No default scope of mmengine at first, and the one from before afterwards.

    A model that is built sets it for the whole process, so what runs next would find its modules by whichever came
    before: another one in each worker and in each order of the tests.
    """
    from mmengine.registry import DefaultScope

    before = dict(DefaultScope._instance_dict)
    DefaultScope._instance_dict.clear()
    try:
        yield
    finally:
        DefaultScope._instance_dict.clear()
        DefaultScope._instance_dict.update(before)


@pytest.fixture(autouse=True)
def default_scope() -> Iterator[None]:
    """Each test starts from no default scope."""
    with own_scope():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
    """Each fixture that outlives a test does too: `default_scope` cannot reach those, they are made before it."""
    if fixturedef.scope == 'function':
        return (yield)
    with own_scope():
        return (yield)
