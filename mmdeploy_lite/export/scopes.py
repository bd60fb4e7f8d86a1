"""Which modules ran while tracing, and which of them the graph has lost."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import onnx
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

# Folded into the convolution before them by the exporter itself; what freezes a norm freezes its convolution too.
_FOLDED = (nn.modules.batchnorm._BatchNorm,)


class ScopeRecorder:
    """Records the scope of each leaf module that runs inside the context, as the exporter names its nodes.

    A node's name starts with the names of the modules that were running, outermost first; of a module in a list, the name includes
    the numbers after the last word (``layers.0``).

    Args:
        root: the module that is traced.
    """

    def __init__(self, root: nn.Module) -> None:
        self._names = {module: name for name, module in root.named_modules()}
        self._root = root
        self._stack: list[str] = []
        self.leaves: dict[nn.Module, str] = {}

    def __enter__(self) -> ScopeRecorder:
        self._handles = [
            torch_module.register_module_forward_pre_hook(self._enter),
            torch_module.register_module_forward_hook(self._leave),
        ]
        return self

    def __exit__(self, *exc_info: object) -> None:
        for handle in self._handles:
            handle.remove()

    def name(self, module: nn.Module) -> str:
        """Its qualified name in the traced module."""
        return self._names[module]

    def _enter(self, module: nn.Module, args: Any) -> None:
        if module in self._names and module is not self._root:
            self._stack.append(_last_word(self._names[module]))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if module not in self._names or module is self._root:
            return
        scope = '/' + '/'.join(self._stack)
        self._stack.pop()
        leaf = next(module.children(), None) is None and not isinstance(module, _FOLDED)
        if leaf and not _passes_through(args, output):
            self.leaves.setdefault(module, scope)


def _last_word(name: str) -> str:
    parts = name.split('.')
    index = max((index for index, part in enumerate(parts) if not part.isnumeric()), default=0)
    return '.'.join(parts[index:])


def _passes_through(args: Any, output: Any) -> bool:
    """An identity, a dropout in evaluation: its output is its input, and it has no node."""
    return any(output is arg for arg in args)


def lost_modules(recorder: ScopeRecorder, model: onnx.ModelProto) -> list[nn.Module]:
    """Leaf modules that ran and have no node of the graph, before any optimization, under their scope."""
    scopes = set()
    for node in model.graph.node:
        parts = node.name.split('/')[1:-1]
        scopes.update(_plain('/' + '/'.join(parts[: depth + 1])) for depth in range(len(parts)))
    return [module for module, scope in recorder.leaves.items() if _plain(scope) not in scopes]


def _plain(scope: str) -> str:
    """Without the counters that the exporter appends when a module runs again."""
    return re.sub(r'_\d+(?=/|$)', '', scope)


def live_modules(modules: Iterable[nn.Module], run: Callable[[int], list[Tensor]]) -> list[nn.Module]:
    """Those of ``modules`` that an answer depends on and that depend on the image: a graph without them is wrong.

    A module may have no node for good reasons: its output is not used (auxiliary heads, all but the last decoder layer's), or it
    is a constant (a bias computed from positions). So its output is compared for two images, and changed to see whether the answer
    changes.

    Args:
        modules: suspects.
        run: runs the model in PyTorch on image 0 or 1 and returns its outputs.
    """
    live = []
    for module in modules:
        first, second = (_outputs_of(module, lambda image=image: run(image)) for image in (0, 1))
        if len(first) == len(second) and all(map(_same, first, second)):
            continue
        plain = run(0)
        handle = module.register_forward_hook(_disturb)
        try:
            disturbed = run(0)
        except (RuntimeError, IndexError, ValueError):
            disturbed = []
        finally:
            handle.remove()
        if len(plain) != len(disturbed) or not all(map(_same, plain, disturbed)):
            live.append(module)
    return live


def _same(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and torch.equal(first, second)


def _disturb(module: nn.Module, args: Any, output: Any) -> Any:
    if isinstance(output, Tensor) and output.is_floating_point():
        return output * 1.5 + 0.5
    return output


def _outputs_of(module: nn.Module, run: Callable[[], Any]) -> list[Tensor]:
    kept: list[Tensor] = []

    def keep(_: nn.Module, args: Any, output: Any) -> None:
        kept.extend(value for value in (output if isinstance(output, (list, tuple)) else [output]) if isinstance(value, Tensor))

    handle = module.register_forward_hook(keep)
    try:
        run()
    finally:
        handle.remove()
    return kept
