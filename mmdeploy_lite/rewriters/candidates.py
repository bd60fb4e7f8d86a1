"""Numbers of candidates: at most so many, whatever there are.

The libraries select ``if scores.shape[0] > nms_pre`` and ``topk(min(max_per_img, n))``; such a branch over a traced
size is frozen as it fell for one image. Instead of the heads, the number is changed: a :class:`Limit` answers these
comparisons as if there were more candidates than that, so that the code that selects is what is traced, and ``topk``
takes all there are where there are fewer.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..export.shapes import at_most, axis_size
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter


class Limit:
    """At most so many. Compared with a number, that number; compared with a traced size, smaller than it.

    Args:
        value: how many.
    """

    def __init__(self, value: int) -> None:
        self.value = int(value)

    def __index__(self) -> int:
        return self.value

    def __lt__(self, other: Any) -> bool:
        return True if isinstance(other, (Tensor, torch.SymInt)) else self.value < other

    def __gt__(self, other: Any) -> bool:
        return False if isinstance(other, (Tensor, torch.SymInt)) else self.value > other


@REWRITERS.register_module()
class Topk(FunctionRewriter):
    """The k largest, of a :class:`Limit` at most k."""

    target = ('torch.topk', 'torch.Tensor.topk')

    def __call__(self, origin: Callable, input: Tensor, k: Any, dim: int = -1, *args: Any, **kwargs: Any) -> Any:
        if isinstance(k, Limit):
            k = at_most(axis_size(input, dim), k.value)
        return origin(input, k, dim, *args, **kwargs)


class LimitCandidates(FunctionRewriter):
    """Hands a head its test config with :class:`Limit` in place of the numbers that it compares sizes with."""

    limits = ('nms_pre',)

    def limited(self, origin: Callable, head: Any, *args: Any, **kwargs: Any) -> inspect.BoundArguments:
        """The arguments of a method that takes ``cfg``, None for the head's own."""
        bound = inspect.signature(origin).bind(head, *args, **kwargs)
        cfg = bound.arguments.get('cfg')
        cfg = copy.deepcopy(head.test_cfg if cfg is None else cfg)
        for name in self.limits:
            if cfg.get(name, -1) > 0:
                cfg[name] = Limit(cfg[name])
        bound.arguments['cfg'] = cfg
        return bound

    def __call__(self, origin: Callable, head: Any, *args: Any, **kwargs: Any) -> Any:
        bound = self.limited(origin, head, *args, **kwargs)
        return origin(*bound.args, **bound.kwargs)
