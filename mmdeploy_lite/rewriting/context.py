"""Swapping rewriters in while a model is traced, and out again."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..errors import RewriteError
from .rewriter import FunctionRewriter
from .targets import MissingTargetError, Swap, Target, find_target


class RewriteContext:
    """Replaces functions and methods on enter and restores every one of them on exit, also after an error.

    A function that other modules imported by name is replaced in each of them, also in modules first imported inside the context
    (these are restored on exit). Modules that define rewriters keep the original under the name they imported. A method is set
    on the class its path names; where it was inherited, it is deleted again. Contexts nest: the inner rewriter's ``origin`` is the
    outer rewriter. Two rewriters of one target in one context nest in the same way, the later one outside.

    Args:
        rewriters: by key. Order matters only for two of one target.
        required: the keys whose targets must exist: those that a user named. Others are skipped where their library, or that
            part of it, is not installed.

    Attributes:
        fired: per key, how often each call site (``module.function``) came through the rewriter.
        skipped: per target path that does not exist here, the reason.

    Raises:
        RewriteError: on enter, a required target does not exist. Nothing stays replaced.
    """

    def __init__(self, rewriters: Mapping[str, FunctionRewriter], required: Collection[str] = ()) -> None:
        self.rewriters = dict(rewriters)
        self.required = frozenset(required)
        self.fired: dict[str, Counter[str]] = {key: Counter() for key in self.rewriters}
        self.skipped: dict[str, str] = {}
        self._swaps: list[Swap] = []

    def __enter__(self) -> RewriteContext:
        if self._swaps:
            raise RewriteError('this RewriteContext is already entered; make a new one to nest')
        skip_modules = frozenset(
            base.__module__ for rewriter in self.rewriters.values() for base in type(rewriter).__mro__[:-1]
        )
        try:
            for key, rewriter in self.rewriters.items():
                for path in rewriter.targets:
                    self._swap(key, rewriter, path, skip_modules)
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._restore()

    def never_fired(self) -> list[str]:
        """Keys whose rewriter was in place and was never called, in their order."""
        return [key for key, sites in self.fired.items() if not sites]

    def _swap(self, key: str, rewriter: FunctionRewriter, path: str, skip_modules: frozenset[str]) -> None:
        try:
            target = find_target(path)
        except MissingTargetError as error:
            if key in self.required:
                raise RewriteError(f"rewriter '{key}' ({type(rewriter).__name__}): {error}") from None
            self.skipped[path] = str(error)
            return
        original = target.raw
        replacement = _wrap(target, original, rewriter, self.fired[key])
        swap = Swap(target, original, replacement, skip_modules)
        self._swaps.append(swap)
        swap.apply()

    def _restore(self) -> None:
        while self._swaps:
            self._swaps.pop().undo()


def _wrap(target: Target, raw: Any, rewriter: FunctionRewriter, sites: Counter[str]) -> Any:
    """What takes the place of ``raw``: a function, or for static and class methods an object of their kind."""
    if isinstance(raw, property) or not callable(getattr(raw, '__func__', raw)):
        raise RewriteError(f"'{target.path}' is a {type(raw).__name__}, not a function or method")
    origin: Callable = getattr(raw, '__func__', raw) if isinstance(raw, (staticmethod, classmethod)) else raw

    def call(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1)
        sites[f'{caller.f_globals.get("__name__", "?")}.{caller.f_code.co_name}'] += 1
        return rewriter(origin, *args, **kwargs)

    try:
        functools.update_wrapper(call, origin)
    except (AttributeError, TypeError):  # builtins with attributes that cannot be copied
        call.__name__ = target.name
    return type(raw)(call) if isinstance(raw, (staticmethod, classmethod)) else call
