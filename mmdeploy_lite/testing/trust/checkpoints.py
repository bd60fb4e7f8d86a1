"""Checkpoints that bring code along: refused by ``deploy``, and nothing of them runs."""

from __future__ import annotations

import builtins
import io
import os
import pickle
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ...apis import deploy
from ...errors import CheckpointError
from .runs import small_model


class _Call:
    """Unpickles as a call."""

    def __init__(self, function: Callable, *args: Any) -> None:
        self._reduced = function, args

    def __reduce__(self) -> tuple[Callable, tuple]:
        return self._reduced


def _through_getattr(path: Path) -> _Call:
    return _Call(getattr, _Call(__import__, 'os'), 'system')


PAYLOADS: dict[str, Callable[[Path], Any]] = {
    'os.system': lambda path: _Call(os.system, f'touch {path}'),
    'subprocess': lambda path: _Call(subprocess.check_output, ['touch', str(path)]),
    'open': lambda path: _Call(open, str(path), 'w'),
    'exec': lambda path: _Call(builtins.exec, f'open({str(path)!r}, "w")'),
    'eval': lambda path: _Call(builtins.eval, f'open({str(path)!r}, "w")'),
    'Path.touch': lambda path: _Call(Path.touch, path),
    'getattr': _through_getattr,
    'torch.load': lambda path: _Call(torch.storage._load_from_bytes, pickle.dumps(_Call(open, str(path), 'w'))),
    'pickle.loads': lambda path: _Call(pickle.loads, pickle.dumps(_Call(open, str(path), 'w'))),
    'in a HistoryBuffer': lambda path: _history(_Call(open, str(path), 'w')),
    'in optimizer state': lambda path: {'state': {0: [_Call(open, str(path), 'w')]}},
}


def _history(payload: Any) -> Any:
    from mmengine.logging import HistoryBuffer

    buffer = HistoryBuffer([1.0], [1])
    buffer.payload = payload
    return buffer


def refused(folder: Path) -> dict[str, Any]:
    """Deploy with each payload beside good weights, in the formats of torch before 1.6 and since, at several protocols.

    Returns:
        ``payloads``, how many; ``refused``; ``ran``, those that did what they wanted; and ``let_through``.
    """
    config, good, image = small_model('segmentor', folder)
    weights = torch.load(good, map_location='cpu', weights_only=True)
    trap, path, ran, through = folder / 'ran', folder / 'bad.pth', [], []

    def attempt(words: str) -> None:
        try:
            deploy(config, path, image, work_dir=folder / 'out')
            through.append(words)
        except CheckpointError:
            pass
        if trap.exists():
            ran.append(words)
            trap.unlink()

    count = 0
    for name, payload in PAYLOADS.items():
        for zipped in (True, False):
            for protocol in (2, 4):
                count += 1
                words = f'{name}, {"zip" if zipped else "legacy"}, protocol {protocol}'
                content = {'state_dict': weights, 'message_hub': payload(trap)}
                torch.save(content, path, _use_new_zipfile_serialization=zipped, pickle_protocol=protocol)
                attempt(words)
    for name, write in (('a script in a zip', _zip_with_code), ('TorchScript', _torchscript)):
        count += 1
        write(path, trap)
        attempt(name)
    return dict(payloads=count, refused=count - len(through), ran=ran, let_through=through)


def _zip_with_code(path: Path, trap: Path) -> None:
    with zipfile.ZipFile(path, 'w') as archive:
        archive.writestr('bad/data.pkl', pickle.dumps(_Call(open, str(trap), 'w'), protocol=2))
        archive.writestr('bad/version', '3\n')
        archive.writestr('bad/byteorder', 'little')


def _torchscript(path: Path, trap: Path) -> None:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Conv2d(3, 3, 1)), buffer)
    path.write_bytes(buffer.getvalue())
