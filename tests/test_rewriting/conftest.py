from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Callable
from types import ModuleType

import pytest

FILES = {
    '__init__.py': '',
    'ops.py': """
        def double(x):
            return 2 * x

        def triple(x):
            return 3 * x

        class Base:
            def scale(self, x):
                return 10 * x

            @staticmethod
            def still(x):
                return x

            @classmethod
            def named(cls, x):
                return f'{cls.__name__}:{x}'

            @property
            def size(self):
                return 1

            def __call__(self, x):
                return self.scale(x)

        class Child(Base):
            constant = 7
    """,
    'user.py': """
        from .ops import double
        from .ops import double as twice

        def use(x):
            return double(x)

        def use_alias(x):
            return twice(x)
    """,
    'late.py': """
        from .ops import double

        def use(x):
            return double(x)
    """,
    'broken.py': 'raise RuntimeError("no driver")',
    'lazy.py': """
        def __getattr__(name):
            if name == 'made':
                return lambda x: x
            raise AttributeError(name)
    """,
    'mine.py': """
        from mmdeploy_lite.rewriting import FunctionRewriter
        from .ops import double

        class Mine(FunctionRewriter):
            target = 'engine_lib.ops.double'

            def __call__(self, origin, x):
                return double(x) + 100  # by name, not through origin
    """,
}


@pytest.fixture
def lib(tmp_path, monkeypatch) -> Callable[[str], ModuleType]:
    """Imports a module of a small package, ``engine_lib``, that exists for one test."""
    folder = tmp_path / 'engine_lib'
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda name: importlib.import_module(f'engine_lib.{name}')
    for name in [name for name in sys.modules if name.split('.')[0] == 'engine_lib']:
        del sys.modules[name]
