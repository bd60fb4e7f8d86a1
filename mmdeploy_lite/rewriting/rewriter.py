"""What a rewriter is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal


class FunctionRewriter:
    """A replacement of one function or method while a model is traced.

    Subclasses set ``target`` and implement ``__call__``; keyword arguments of the config entry
    (``dict(type='Name', **kwargs)``) go to ``__init__``.

    Example:
        >>> @REWRITERS.register_module()
        >>> class Double(FunctionRewriter):
        ...     target = 'my_project.ops.double'
        ...
        ...     def __call__(self, origin, x):
        ...         return x + x
    """

    target: ClassVar[str | tuple[str, ...]] = ()
    """Dotted path(s) of what is replaced: ``package.module.function`` or ``package.module.Class.method``."""

    only: ClassVar[Literal['tracing', 'symbolic'] | None] = None
    """'tracing': it answers for what the TorchScript tracer makes of values and sizes, and ``torch.export`` does
    without it; 'symbolic': the other way round. None: both take it.
    """

    @classmethod
    def target_paths(cls) -> tuple[str, ...]:
        """The dotted paths as a tuple."""
        return (cls.target,) if isinstance(cls.target, str) else tuple(cls.target)

    @property
    def targets(self) -> tuple[str, ...]:
        """The dotted paths as a tuple."""
        return self.target_paths()

    def check(self, model: Any) -> None:
        """Refuse, before anything is traced, a model that asks for what this rewriter cannot do exactly.

        Args:
            model: that will be traced.

        Raises:
            UnsupportedError: with the reason.
        """

    def prepare(self, model: Any) -> None:
        """Compute what the weights alone decide, before anything is traced: ``torch.export`` hides their values.

        Args:
            model: that will be traced.
        """

    def __call__(self, origin: Callable, *args: Any, **kwargs: Any) -> Any:
        """Answer what the target answers, with operations that can be traced.

        Args:
            origin: what was there before: the original, or the rewriter of an enclosing context.
            *args: the target's own arguments; of a method, ``self`` comes first.
            **kwargs: the target's own keyword arguments.

        Returns:
            The target's own result.
        """
        raise NotImplementedError(f'{type(self).__name__} has no __call__')
