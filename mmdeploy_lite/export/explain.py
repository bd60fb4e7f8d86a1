"""What could not be traced, in which class, and the rewriter to write for it."""

from __future__ import annotations

import ast
import linecache
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from torch.overrides import TorchFunctionMode

_NOT_THE_MODELS = ('torch', 'mmdeploy_lite', 'onnx', 'contextlib', 'functools')


class Place(NamedTuple):
    """A function of the model's code.

    Attributes:
        path: dotted, as a rewriter's target: ``package.module.Class.method``.
        method: it takes ``self``.
    """

    path: str
    method: bool


def explain(error: BaseException) -> str:
    """One paragraph: what failed, in which class and line of the model's code, and the rewriter to write."""
    line, place = _innermost(error)
    advice = f'{line}\n{rewriter_for(place)}' if place else ''
    return f'tracing failed with {_first_line(error)}{advice}'


def explain_pytorch(error: BaseException) -> str:
    """What failed without any tracing, and in which class and line of the model's code."""
    return f'{_first_line(error)}{_innermost(error)[0]}'


def _first_line(error: BaseException) -> str:
    words = str(error).strip().splitlines() or ['']
    return f'{type(error).__name__}: {words[0]}'


def _innermost(error: BaseException) -> tuple[str, Place | None]:
    """The innermost frame of the model's code, as a line of its own and as a place; '' and None where there is none."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    for frame, line in reversed(frames):
        module = frame.f_globals.get('__name__', '')
        if _is_the_models(module):
            owner, name = frame.f_locals.get('self'), frame.f_code.co_name
            path = f'{module}.{name}' if owner is None else f'{type(owner).__module__}.{type(owner).__name__}.{name}'
            return f'\n  at {path} ({frame.f_code.co_filename}:{line})', Place(path, owner is not None)
    return '', None


def explain_operator(error: BaseException, run: Callable[[], object]) -> str:
    """Where the model calls the operator that the exporter has no ONNX for, and the rewriter to write; '' if unknown.

    Args:
        error: the exporter's, which names the operator and not the place.
        run: runs the model once more, in PyTorch.
    """
    named = re.search(r"operator '(?:aten::)?(\w+)'", str(error))
    if named is None:
        return ''
    finder = _FindCall(named[1])
    try:
        with finder:
            run()
    except Exception:  # noqa: BLE001  (it is on the way to another error)
        return ''
    if finder.place is None:
        return ''
    return f'\n  called in {finder.place.path}\n{rewriter_for(finder.place)}'


class _FindCall(TorchFunctionMode):
    """Keeps the function of the model's code that calls an operator first."""

    def __init__(self, operator: str) -> None:
        super().__init__()
        self.operator = operator.strip('_')
        self.place: Place | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.place is None and getattr(func, '__name__', '').strip('_') == self.operator:
            frame = sys._getframe(1)
            while frame is not None and self.place is None:
                self.place = function_at(frame.f_code.co_filename, frame.f_lineno)
                frame = frame.f_back
        return func(*args, **(kwargs or {}))


def explain_frozen(places: Iterable[tuple[str, int]]) -> str:
    """The rewriter to write for the first line of the model's code at which a traced value became a Python value.

    Args:
        places: file and line of each.

    Returns:
        Empty where no line is in a function of the model's code.
    """
    for filename, lineno in places:
        place = function_at(filename, lineno)
        if place is not None:
            return f'The first is in {place.path}. {rewriter_for(place)}'
    return ''


def function_at(filename: str, lineno: int) -> Place | None:
    """The function of a module or method of a class that a line is in; None outside the model's code."""
    module = next((m for m in list(sys.modules.values()) if getattr(m, '__file__', None) == filename), None)
    if module is None or not _is_the_models(module.__name__):
        return None
    node: ast.AST = ast.parse(''.join(linecache.getlines(filename)))
    names, method = [module.__name__], False
    while not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        method = isinstance(node, ast.ClassDef)
        named = (item for item in ast.iter_child_nodes(node) if isinstance(item, (ast.ClassDef, ast.FunctionDef)))
        node = next((item for item in named if item.lineno <= lineno <= item.end_lineno), None)
        if node is None:
            return None
        names.append(node.name)
    return Place('.'.join(names), method)


def rewriter_for(place: Place) -> str:
    """What to write, ready to paste."""
    name = 'My' + place.path.rpartition('.')[2].strip('_').title().replace('_', '')
    arguments = 'origin, head, *args, **kwargs' if place.method else 'origin, *args, **kwargs'
    return (
        'Replace what cannot be traced there with a rewriter:\n\n'
        '    from mmdeploy_lite.registry import REWRITERS\n'
        '    from mmdeploy_lite.rewriting import FunctionRewriter\n\n'
        '    @REWRITERS.register_module()\n'
        f'    class {name}(FunctionRewriter):\n'
        f"        target = '{place.path}'\n\n"
        f'        def __call__(self, {arguments}):\n'
        '            ...\n\n'
        f"and name it in the config: deploy = dict(rewriters=dict(mine=dict(type='{name}')))"
    )


def _is_the_models(module: str) -> bool:
    return module.split('.')[0] not in _NOT_THE_MODELS
