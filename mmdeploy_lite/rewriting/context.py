"""Swapping rewriters in while a model is traced, and out again."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from types import GetSetDescriptorType
from typing import Any

from ..errors import RewriteError
from .rewriter import FunctionRewriter
from .targets import MissingTargetError, Swap, Target, find_target, replace_names

# PyTorch's own Python code for tensors without values: it runs inside an operator, and no model calls it. What the
# rewriters for such tensors answer holds there too
_COMPUTES_SHAPES = ('torch._refs', 'torch._decomp', 'torch._meta', 'torch._prims', 'torch._subclasses', 'torch.fx')


class RewriteContext:
    """Replaces functions and methods on enter and restores every one of them on exit, also after an error.

    A function that other modules imported by name is replaced in each of them, also in modules first imported inside
    the context (these are restored on exit). The module that defines a rewriter keeps the original of that rewriter's
    target under the name it imported, or it would call itself for ever; other targets are replaced there too, since
    it may hold a model as well. A method is set on the class its path names; where it was inherited, it is deleted
    again. What was kept elsewhere inside the context (a default argument, a ``functools.partial``) does afterwards
    what the original does. Contexts nest: the inner rewriter's ``origin`` is the outer rewriter. Two rewriters of one
    target in one context nest in the same way, the later one outside.

    Args:
        rewriters: by key. Order matters only for two of one target.
        required: the keys whose targets must exist: those that a user named. Others are skipped where their library, or
            that part of it, is not installed.

    Attributes:
        fired: per key, how often each call site (``module.function``) came through the rewriter.
        skipped: per target path that does not exist here, the reason.

    Raises:
        RewriteError: on enter, a required target does not exist, or a target is neither a function, a method nor a
            property, or is in a module that fails to import. Nothing stays replaced.
    """

    def __init__(self, rewriters: Mapping[str, FunctionRewriter], required: Collection[str] = ()) -> None:
        self.rewriters = dict(rewriters)
        self.required = frozenset(required)
        self.fired: dict[str, Counter[str]] = {key: Counter() for key in self.rewriters}
        self.skipped: dict[str, str] = {}
        self._swaps: list[Swap] = []
        self._active = False

    def __enter__(self) -> RewriteContext:
        if self._active:
            raise RewriteError('this RewriteContext is already entered; make a new one to nest')
        self._active = True
        try:
            for key, rewriter in self.rewriters.items():
                for path in rewriter.targets:
                    self._swap(key, rewriter, path)
            replace_names(self._swaps)
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._restore()

    def never_fired(self) -> list[str]:
        """Keys whose rewriter was in place and was never called, in their order."""
        return [
            key
            for key, sites in self.fired.items()
            if not sites and not self.skipped.keys() >= set(self.rewriters[key].targets)
        ]

    def _swap(self, key: str, rewriter: FunctionRewriter, path: str) -> None:
        try:
            target = find_target(path)
        except MissingTargetError as error:
            if key in self.required:
                raise RewriteError(f"rewriter '{key}' ({type(rewriter).__name__}): {error}") from None
            self.skipped[path] = str(error)
            return
        original = target.raw
        replacement = self._wrap(target, original, key, rewriter)
        own_modules = frozenset(base.__module__ for base in type(rewriter).__mro__)
        swap = Swap(target, original, replacement, own_modules)
        self._swaps.append(swap)
        swap.apply()

    def _restore(self) -> None:
        replace_names(self._swaps, back=True)
        while self._swaps:
            self._swaps.pop().undo()
        self._active = False

    def _wrap(self, target: Target, raw: Any, key: str, rewriter: FunctionRewriter) -> Any:
        """What takes the place of ``raw``: a function, or for static and class methods and properties an object of
        their kind.
        """
        bound = isinstance(raw, (staticmethod, classmethod))
        is_property = isinstance(raw, (property, GetSetDescriptorType))
        origin: Callable = raw.__func__ if bound else raw.__get__ if is_property else raw
        if isinstance(origin, type) or not callable(origin):
            kind = 'class' if isinstance(origin, type) else type(raw).__name__
            raise RewriteError(f"rewriter '{key}': '{target.path}' is a {kind}, not a function, method or property")
        sites = self.fired[key]

        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._active:
                return origin(*args, **kwargs)
            caller = sys._getframe(1)
            module = caller.f_globals.get('__name__', '?')
            if module.startswith(_COMPUTES_SHAPES) and rewriter.only != 'symbolic':
                return origin(*args, **kwargs)
            sites[f'{module}.{caller.f_code.co_name}'] += 1
            return rewriter(origin, *args, **kwargs)

        try:
            functools.update_wrapper(call, origin)
        except (AttributeError, TypeError):  # builtins with attributes that cannot be copied
            call.__name__ = target.name
        if is_property:
            return property(call)
        return type(raw)(call) if bound else call
