"""Which modules ran while tracing, and which of them the graph has lost."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import onnx
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from .graphs import all_nodes

# Folded into the convolution before them by the exporter itself; what freezes a norm freezes its convolution too.
_FOLDED = (nn.modules.batchnorm._BatchNorm,)


class ScopeRecorder:
    """Records the scope of each leaf module that runs inside the context, as the exporter names its nodes.

    A node's name starts with the names of the modules that were running, outermost first; of a module in a list, the
    name includes the numbers after the last word (``layers.0``).

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


def lost_modules(
    recorder: ScopeRecorder, model: onnx.ModelProto, modules: Collection[str] | None = None
) -> list[nn.Module]:
    """Leaf modules that ran and have no node of the graph, before any optimization, under their scope.

    Args:
        recorder: of the modules that ran.
        model: the graph.
        modules: qualified names of those that have nodes, where the exporter says so.
    """
    if modules is not None:
        return [module for module in recorder.leaves if recorder.name(module) not in modules]
    found = set()
    for node in all_nodes(model.graph):
        parts = node.name.split('/')[1:-1]
        found.update('/' + '/'.join(parts[: depth + 1]) for depth in range(len(parts)))
    # `conv_1` may be what runs after `conv` in the code, or `conv` run again, which the exporter numbers
    again = found - set(recorder.leaves.values())
    return [
        module for module, scope in recorder.leaves.items() if scope not in found and not _any_numbered(scope, again)
    ]


def _any_numbered(scope: str, found: Iterable[str]) -> bool:
    """Whether a scope is there with the counters that the exporter appends to what runs again."""
    numbered = re.compile('/'.join(f'{re.escape(part)}(_[0-9]+)?' for part in scope.split('/')))
    return any(numbered.fullmatch(other) for other in found)


def live_modules(root: nn.Module, modules: Iterable[nn.Module], run: Callable[[int], list[Tensor]]) -> list[nn.Module]:
    """Those of ``modules`` that an answer depends on and that depend on the image: a graph without them is wrong.

    A module may have no node for good reasons: its output is not used (auxiliary heads, all but the last decoder
    layer's), it is a constant (a bias computed from positions), or another module of its kind computes the very same
    and the exporter merged the two. So its output is compared for two images and with its like, and changed to see
    whether the answer changes.

    Args:
        root: the module that was traced.
        modules: suspects.
        run: runs the model in PyTorch on image 0 or 1 and returns its outputs.
    """
    modules = list(modules)
    if not modules:
        return []
    plain = run(0)
    found = _changing(modules, run, plain)
    if not found:
        return []
    first, second = (_leaf_outputs(root, lambda image=image: run(image)) for image in (0, 1))
    live = []
    for module in found:
        if _equal(first.get(module, []), second.get(module, [])):
            continue
        twins = (other for other in first if other not in modules and type(other) is type(module))
        if not any(_equal(first[module], first[twin]) and _equal(second[module], second[twin]) for twin in twins):
            live.append(module)
    return live


def _changing(modules: Sequence[nn.Module], run: Callable[[int], list[Tensor]], plain: list[Tensor]) -> list[nn.Module]:
    """Those that change the answer when their output is changed, found by halves: most often it is none, in one run."""
    handles = [module.register_forward_hook(_disturb) for module in modules]
    try:
        disturbed = run(0)
    except (RuntimeError, IndexError, ValueError):
        disturbed = []
    finally:
        for handle in handles:
            handle.remove()
    if _equal(plain, disturbed):
        return []
    if len(modules) == 1:
        return [*modules]
    half = len(modules) // 2
    return [*_changing(modules[:half], run, plain), *_changing(modules[half:], run, plain)]


def _equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) and all(
        one.shape == other.shape and torch.equal(one, other) for one, other in zip(first, second, strict=True)
    )


def _disturb(module: nn.Module, args: Any, output: Any) -> Any:
    return _changed(output)


def _changed(value: Any) -> Any:
    if isinstance(value, Tensor):
        if value.is_floating_point():
            return value * 1.5 + 0.5
        return ~value if value.dtype == torch.bool else value + 1
    if isinstance(value, dict):
        return {key: _changed(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_changed(item) for item in value]
        return type(value)(*items) if hasattr(value, '_fields') else type(value)(items)
    return value


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def _leaf_outputs(root: nn.Module, run: Callable[[], Any]) -> dict[nn.Module, list[Tensor]]:
    """What each leaf module returns in one run."""
    kept: dict[nn.Module, list[Tensor]] = {}

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        kept.setdefault(module, []).extend(_tensors(output))

    handles = [module.register_forward_hook(keep) for module in root.modules() if next(module.children(), None) is None]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return kept
