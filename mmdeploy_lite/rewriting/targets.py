"""Dotted paths to the objects they name, and swapping these objects."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ..errors import RewriteError

_MISSING = object()


class MissingTargetError(RewriteError):
    """The dotted path names nothing that exists here."""


@dataclass(frozen=True)
class Target:
    """One replaceable attribute: ``getattr(owner, name)``, ``owner`` a module or a class."""

    path: str
    owner: ModuleType | type
    name: str

    @property
    def raw(self) -> Any:
        """The attribute as it is stored: a ``staticmethod`` object, not the function in it."""
        if isinstance(self.owner, type):
            return inspect.getattr_static(self.owner, self.name)
        return getattr(self.owner, self.name)


def find_target(path: str) -> Target:
    """Resolve a dotted path, importing the longest prefix that is a module.

    Args:
        path: ``package.module.function`` or ``package.module.Class.method``.

    Returns:
        Where the attribute lives.

    Raises:
        MissingTargetError: no such library, module or attribute. The message says at which part the path ends.
        RewriteError: a module on the way exists and fails to import.
    """
    parts = path.split('.')
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise MissingTargetError(f"'{path}' is not a dotted path like 'package.module.function'")
    owner, depth = _import_longest(parts)
    if owner is None:
        raise MissingTargetError(f"'{path}': the package '{parts[0]}' is not installed")
    for index in range(depth, len(parts) - 1):
        child = getattr(owner, parts[index], _MISSING)
        if not isinstance(child, (type, ModuleType)):
            raise MissingTargetError(f"'{path}': '{'.'.join(parts[:index])}' has no module or class '{parts[index]}'")
        owner = child
    if depth == len(parts) or getattr(owner, parts[-1], _MISSING) is _MISSING:
        raise MissingTargetError(f"'{path}': '{'.'.join(parts[:-1])}' has no function or method '{parts[-1]}'")
    return Target(path, owner, parts[-1])


def _import_longest(parts: list[str]) -> tuple[Any, int]:
    """The module named by the longest importable prefix of ``parts``, and that prefix's length."""
    module, depth = None, 0
    for depth in range(1, len(parts) + 1):
        name = '.'.join(parts[:depth])
        # find_spec tells a module that does not exist from one that fails to import: the latter is never skipped
        if module is not None and not hasattr(module, '__path__'):
            return module, depth - 1
        try:
            found = name in sys.modules or importlib.util.find_spec(name) is not None
        except ValueError:  # a module without a spec, such as __main__
            found = True
        if not found:
            return module, depth - 1
        try:
            module = importlib.import_module(name)
        except Exception as error:
            raise RewriteError(
                f"'{'.'.join(parts)}': importing '{name}' failed with {type(error).__name__}: {error}"
            ) from error
    return module, depth


@dataclass
class Swap:
    """One object put in the place of another, and back again; other names of a function are :func:`replace_names`'."""

    target: Target
    original: Any
    replacement: Any
    skip_modules: frozenset[str]

    def __post_init__(self) -> None:
        # what a class inherits, or a module makes when it is asked, is not its own and must not be left behind
        self._own = self.target.name in vars(self.target.owner)

    @property
    def has_names(self) -> bool:
        """Other modules may have imported it by name: a function of a module, not a method."""
        return isinstance(self.target.owner, ModuleType)

    def apply(self) -> None:
        """Put the replacement in place."""
        setattr(self.target.owner, self.target.name, self.replacement)

    def undo(self) -> None:
        """Put the original back."""
        owner, name = self.target.owner, self.target.name
        if self._own:
            setattr(owner, name, self.original)
        elif name in vars(owner):
            delattr(owner, name)


def replace_names(swaps: Iterable[Swap], back: bool = False) -> None:
    """Replace the originals in every loaded module that imported them by name, in one pass over all of them.

    Args:
        swaps: in the order they were applied; one may replace another's replacement.
        back: put the originals back, also in modules imported meanwhile that took a replacement by name.
    """
    by_id = {id(swap.replacement if back else swap.original): swap for swap in swaps if swap.has_names}
    if not by_id:
        return
    # list(): a lazily loading module may change sys.modules or its own dict while it is looked at
    for module_name, module in list(sys.modules.items()):
        # most modules hold none of them, and a set of identities tells so without a step of Python for each attribute
        if not isinstance(module, ModuleType) or by_id.keys().isdisjoint(map(id, list(vars(module).values()))):
            continue
        for attribute, value in list(vars(module).items()):
            new = value
            while (swap := by_id.get(id(new))) is not None and (back or module_name not in swap.skip_modules):
                new = swap.original if back else swap.replacement
            if new is not value:
                setattr(module, attribute, new)
