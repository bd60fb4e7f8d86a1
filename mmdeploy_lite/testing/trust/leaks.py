"""What a deploy leaves behind in the process: nothing, whether it ended well or badly."""

from __future__ import annotations

import functools
import hashlib
import json
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from ...apis import deploy
from ...errors import DeployError
from .fixtures import fixture

PACKAGES = ('torch', 'mmcv', 'mmdet', 'mmseg', 'mmengine', 'copy', 'builtins', 'warnings', 'math')
"""Those that rewriters patch, and some that they might."""

NAMES = ('RetinaNet', 'Mask R-CNN', 'SegFormer', 'demo segmentor')
_KINDS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.GetSetDescriptorType,
    property,
    classmethod,
    staticmethod,
    functools.partial,
    type,
)


def snapshot() -> dict[tuple[str, str], Any]:
    """Every function and class of the packages, and every method of these classes, by where it is named."""
    found: dict[tuple[str, str], Any] = {}
    for name, module in list(sys.modules.items()):
        if name.partition('.')[0] not in PACKAGES or not isinstance(module, types.ModuleType):
            continue
        for key, value in list(vars(module).items()):
            if not isinstance(value, _KINDS):
                continue
            found[name, key] = value
            if isinstance(value, type) and value.__module__.partition('.')[0] in PACKAGES:
                for method, member in list(vars(value).items()):
                    if isinstance(member, _KINDS):
                        found[f'{value.__module__}.{value.__qualname__}', method] = member
    return found


def changed(before: dict[tuple[str, str], Any]) -> list[str]:
    """What is no longer the object that it was, or is named now by a class or module that was there and is one of ours.

    What a module imports late is no change.
    """
    now = snapshot()
    replaced = [key for key, value in before.items() if now.get(key) is not value]
    ours = 'mmdeploy_lite.rewriting.context'
    added = [key for key, value in now.items() if key not in before and getattr(value, '__module__', '') == ours]
    return [f'{place}.{name}' for place, name in [*replaced, *added]]


class _Stop(BaseException):
    """What no one catches."""


ENDINGS: dict[str, tuple[str, BaseException | None]] = {
    'well': ('', None),
    'an interrupt while tracing': ('mmdeploy_lite.export.torchscript.close_loops', KeyboardInterrupt()),
    'an error while tracing': ('mmdeploy_lite.export.torchscript.take_zeros_literally', RuntimeError('broken')),
    'an audit that fails': ('mmdeploy_lite.export.build.unknown_places', DeployError('refused')),
    'an interrupt while comparing': ('mmdeploy_lite.check.verify.exercised', KeyboardInterrupt()),
    'what no one catches, while optimizing': ('mmdeploy_lite.export.build.optimize', _Stop()),
}
"""How a deploy may end, and where it is made to."""


def restored(folder: Path, demo: Path, names: Sequence[str] = NAMES[:3]) -> dict[str, Any]:
    """Deploys that end in every way.

    Args:
        folder: for files.
        demo: folder of the demo.
        names: of the fixtures.

    Returns:
        ``deploys``, how many; ``compared``, how many objects each time; ``leaks``, those that were not restored.
    """
    leaks, deploys, size = [], 0, 0
    for name in names:
        made = fixture(name, folder / name, demo)
        run = functools.partial(
            deploy, made.config, made.checkpoint, made.images[:1], work_dir=folder / 'out', cfg_options=made.cfg_options
        )
        run()  # what is imported late is imported now
        before = snapshot()
        size = max(size, len(before))
        for ending, (place, error) in ENDINGS.items():
            deploys += 1
            _end(run, place, error)
            leaks += [f'{name}, {ending}: {what}' for what in changed(before)]
    return dict(deploys=deploys, compared=size, leaks=leaks)


def _end(run: Callable[[], Any], place: str, error: BaseException | None) -> None:
    if error is None:
        run()
        return
    try:
        with mock.patch(place, side_effect=error):
            run()
    except BaseException as caught:
        if type(caught) is not type(error) and not isinstance(caught, DeployError):
            raise
    else:
        raise AssertionError(f'the deploy did not come through {place}')


def digest(config: str, checkpoint: str, image: str, cfg_options: dict[str, Any], work_dir: str) -> str:
    """SHA-256 of the file that a model is deployed to."""
    path = deploy(config, checkpoint, [image], work_dir=work_dir, cfg_options=cfg_options).path
    return hashlib.sha256(path.read_bytes()).hexdigest()


def same_bytes(folder: Path, demo: Path) -> dict[str, Any]:
    """One model after the other in this process, and each in a fresh one.

    Returns:
        ``models``, how many, and the names of those that ``differ``.
    """
    differ = []
    for name in NAMES:
        made = fixture(name, folder / name, demo)  # once: weights calibrated again may be rounded in another way
        what = [str(made.config), str(made.checkpoint), str(made.images[0]), made.cfg_options]
        here = digest(*what, str(folder / name / 'here'))
        code = (
            'import json, sys; from mmdeploy_lite.testing.trust.leaks import digest;'
            'print(digest(*json.loads(sys.argv[1])))'
        )
        arguments = json.dumps([*what, str(folder / name / 'fresh')])
        command = [sys.executable, '-W', 'ignore', '-c', code, arguments]
        fresh = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]
        differ += [name] if here != fresh else []
    return dict(models=len(NAMES), differ=differ)
