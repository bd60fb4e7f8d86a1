"""The module that takes the place of a missing ``mmcv._ext``."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import logging
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NoReturn

from ..errors import UnsupportedError

NAME = 'mmcv._ext'

#: The files of this package that hold operators, one per group. Each lists what it supplies in its ``__all__``.
GROUPS: Sequence[str] = (
    'carafe',
    'deform_conv',
    'focal_loss',
    'info',
    'masked_conv',
    'ms_deform_attn',
    'nms',
    'psamask',
    'roi_align',
    'roi_pool',
    'soft_nms',
)


class MissingOperatorError(UnsupportedError, NotImplementedError):
    """A model called an operator of mmcv that has no PyTorch version here."""


class StandInModule(ModuleType):
    """A module with the operators of this package, and a callable that raises for every other name.

    ``mmcv.ops`` looks up all its operators while it is imported, so a missing one may only fail when it is called.
    """

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        # Dunders are questions that Python asks a module (`__path__`: are you a package?); an answer would be a lie.
        if name.startswith('__') and name.endswith('__'):
            raise AttributeError(f'module {self.__name__!r} has no attribute {name!r}')
        return _missing(name)


class _StandInLoader:
    """Makes and fills the module, so that its ``__spec__`` names a loader, as that of any module does."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return StandInModule(spec.name, __doc__)

    def exec_module(self, module: ModuleType) -> None:
        package = __name__.rpartition('.')[0]
        for group in GROUPS:
            source = importlib.import_module(f'{package}.{group}')
            for name in source.__all__:
                setattr(module, name, getattr(source, name))


def _missing(name: str) -> Callable[..., NoReturn]:
    def missing(*args: Any, **kwargs: Any) -> NoReturn:
        raise MissingOperatorError(
            f'mmcv operator {name!r} is not available: this is mmcv-lite, without the compiled extension {NAME}, and '
            f'mmdeploy_lite.ops has no PyTorch version of it. Install the full mmcv to use it.'
        )

    missing.__name__ = missing.__qualname__ = name
    return missing


def _is_found() -> bool:
    """Whether a ``mmcv._ext`` that is not ours is loaded or can be; True without mmcv: nothing to stand in for."""
    if NAME in sys.modules:
        return True
    try:
        return importlib.util.find_spec(NAME) is not None
    except ModuleNotFoundError as error:
        if error.name == 'mmcv':
            return True
        raise


def stand_ins_active() -> bool:
    """Whether ``mmcv._ext`` is the stand-in module of this package."""
    return isinstance(sys.modules.get(NAME), StandInModule)


def install() -> bool:
    """Put the stand-ins in the place of ``mmcv._ext`` if no compiled one can be found.

    Calling it again changes nothing. A compiled extension is never hidden, not even one that fails to load: hiding it
    would turn a broken installation into a slow one.

    Returns:
        bool: True if the stand-ins are active, now or already; False with a compiled mmcv, or without mmcv.
    """
    if stand_ins_active():
        return True
    if _is_found():
        return False

    spec = importlib.machinery.ModuleSpec(NAME, _StandInLoader(), origin='mmdeploy_lite.ops')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[NAME] = module
    # What an import would have done; `find_spec` has imported the parent.
    sys.modules['mmcv']._ext = module
    _announce()
    return True


def _announce() -> None:
    from mmengine.logging import print_log

    print_log(
        'mmcv has no compiled extension (mmcv-lite): its operators run as the PyTorch stand-ins of mmdeploy_lite.ops',
        logger='current',
        level=logging.INFO,
    )
