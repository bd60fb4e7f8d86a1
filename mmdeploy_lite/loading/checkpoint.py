"""Checkpoints: reading a file without trusting it, and fitting its weights to a model."""

from __future__ import annotations

import hashlib
import io
import logging
import sys
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from mmengine.logging import print_log
from torch import nn

from ..errors import CheckpointError
from . import unpickle

SHOWN = 5
"""How many keys an error or a warning lists."""


def load_checkpoint_file(path: str | Path, unsafe: bool = False) -> dict[str, Any]:
    """Read a checkpoint file onto the CPU.

    Only tensors, NumPy arrays and plain containers are restored, see :mod:`mmdeploy_lite.loading.unpickle`. Objects
    of mmengine and its kin come back as :class:`~mmdeploy_lite.loading.unpickle.Inert`. TorchScript archives and the
    tar format of torch < 0.1.10 are refused.

    Args:
        path: a local file; nothing is downloaded.
        unsafe: unpickle everything where reading it safely is refused. The file can then run any code.

    Raises:
        CheckpointError: the file is missing, unreadable or not a checkpoint, or would have to be unpickled unsafely.
    """
    file = _existing(path)
    try:
        checkpoint = _load_safely(file)
    except unpickle.UnsafeGlobalError as error:
        if not unsafe:
            raise CheckpointError(
                f'checkpoint {path} needs unsafe unpickling: it holds {error.name}, which is neither weights nor plain'
                ' data. If you trust where the file comes from, --unsafe-checkpoint loads it all the same, and so'
                ' lets it run any code it brings along, with your rights'
            ) from error
        print_log(f'unpickling all of {path}, also {error.name}: it can run any code', 'current', logging.WARNING)
        checkpoint = _load_unsafely(file)
    if not isinstance(checkpoint, Mapping):
        raise CheckpointError(
            f'checkpoint {path} holds a {type(checkpoint).__name__}, not a dict with weights;'
            " save torch.save({'state_dict': model.state_dict()}, path)"
        )
    return checkpoint


def file_sha256(path: str | Path) -> str:
    """SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with open(path, 'rb') as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def extract_state_dict(checkpoint: Mapping[str, Any], source: str | Path = '') -> OrderedDict[str, torch.Tensor]:
    """The weights in a checkpoint, by parameter name.

    They are looked for under ``state_dict``, ``model`` and ``params``, then at the top. ``state_dict`` comes first:
    where mmengine kept an exponential moving average, that is what it holds. The ``module.`` prefix of a wrapped
    model is cut off.

    Args:
        checkpoint: what :func:`load_checkpoint_file` returned.
        source: the file's name, for the error.

    Raises:
        CheckpointError: there are no tensors in any of these places.
    """
    for found in (checkpoint.get('state_dict'), checkpoint.get('model'), checkpoint.get('params'), checkpoint):
        if isinstance(found, Mapping) and any(isinstance(value, torch.Tensor) for value in found.values()):
            break
    else:
        raise CheckpointError(
            f'checkpoint {source} has no weights under state_dict, model or params, nor at the top;'
            f' its keys are: {_some(checkpoint)}'
        )
    weights = OrderedDict((_bare(str(key)), value) for key, value in found.items() if isinstance(value, torch.Tensor))
    versions = getattr(found, '_metadata', None)
    if isinstance(versions, Mapping):  # by it layers know in which version's form they were saved
        weights._metadata = OrderedDict((_bare(str(key)), value) for key, value in versions.items())
    return weights


def load_weights(
    model: nn.Module, weights: Mapping[str, torch.Tensor], source: str | Path = '', allow_mismatch: bool = False
) -> None:
    """Copy weights into a model, and refuse what does not fit.

    Every parameter and buffer of the model has to be there in its size; ``num_batches_tracked`` alone may be missing,
    evaluation does not read it. Weights that the model has no place for are only a warning.

    Args:
        model: receives the weights; each layer's own conversion of older forms applies.
        weights: see :func:`extract_state_dict`.
        source: the file's name, for the messages.
        allow_mismatch: warn where this would refuse; what does not fit keeps the model's own initial value.

    Raises:
        CheckpointError: sizes differ or weights are missing.
    """
    expected = model.state_dict()
    sizes = []
    try:
        result = model.load_state_dict(weights, strict=False)
    except RuntimeError as error:  # sizes differ, and torch does not say apart which keys were missing
        fitting = OrderedDict(weights)
        for key, value in weights.items():
            if key in expected and value.shape != expected[key].shape:
                sizes.append(f'{key} is {tuple(value.shape)}, the model has {tuple(expected[key].shape)}')
                del fitting[key]
        if hasattr(weights, '_metadata'):
            fitting._metadata = weights._metadata
        try:
            result = model.load_state_dict(fitting, strict=False)
        except RuntimeError:  # a size that differs only after a layer converted an older form
            raise CheckpointError(
                f'checkpoint {source} does not fit the model: {" ".join(str(error).split())};'
                ' give the config it was trained with'
            ) from error
    missing = [
        key
        for key in result.missing_keys
        if key not in weights and key in expected and not key.endswith('num_batches_tracked')
    ]
    problems = []
    if sizes:
        problems.append(f'{len(sizes)} of {len(expected)} have another size ({_some(sizes, "; ")})')
    if missing:
        problems.append(
            f'{len(missing)} of {len(expected)} are missing'
            f' ({_some([f"{key} {tuple(expected[key].shape)}" for key in missing])})'
        )
    if problems:
        text = f'the weights of checkpoint {source} do not fit the model: {", and ".join(problems)}'
        if not allow_mismatch:
            raise CheckpointError(
                f'{text}. Give the config that it was trained with (num_classes?), or --allow-mismatch to go on with'
                ' untrained values in their place'
            )
        print_log(f'{text}; these keep untrained values (--allow-mismatch)', 'current', logging.WARNING)
    if result.unexpected_keys:
        print_log(
            f'checkpoint {source} has {len(result.unexpected_keys)} weights that the model has no place for:'
            f' {_some(result.unexpected_keys)}',
            'current',
            logging.WARNING,
        )


class _Stream(io.BufferedReader):
    """A file without a file number: ``torch.load`` then reads it in place and does not try to unpack it as a tar
    archive."""

    def fileno(self) -> int:
        raise io.UnsupportedOperation('fileno')


def _existing(path: str | Path) -> Path:
    if '://' in str(path):
        raise CheckpointError(f'checkpoint {path} is an address; download it first and give the file')
    file = Path(path).expanduser()
    if not file.exists():
        raise CheckpointError(f'checkpoint {path} does not exist')
    if not file.is_file():
        raise CheckpointError(f'checkpoint {path} is not a file; give the .pth file itself')
    return file


def _load_safely(file: Path) -> Any:
    try:
        with _Stream(io.FileIO(file)) as stream:
            if stream.peek(4).startswith(b'PK\x03\x04'):
                _refuse_torchscript(stream, file)
            return torch.load(
                stream, map_location='cpu', pickle_module=sys.modules[unpickle.__name__], weights_only=False
            )
    except (CheckpointError, unpickle.UnsafeGlobalError):
        raise
    except Exception as error:
        raise _unreadable(file, error) from error


def _refuse_torchscript(stream: _Stream, file: Path) -> None:
    """``torch.load`` would hand such an archive to ``torch.jit.load``, past the unpickler. Asked by torch's own
    reader, so that both see the same records."""
    if 'constants.pkl' in torch._C.PyTorchFileReader(stream).get_all_records():
        raise CheckpointError(
            f'checkpoint {file} is a TorchScript archive, which holds a program and not the weights alone;'
            ' save the state_dict of the model that it was made from'
        )
    stream.seek(0)


def _load_unsafely(file: Path) -> Any:
    try:
        return torch.load(file, map_location='cpu', weights_only=False)
    except Exception as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> CheckpointError:
    text = ' '.join(str(error).split())
    return CheckpointError(
        f'checkpoint {file} ({file.stat().st_size} bytes) cannot be read, it is damaged or not a PyTorch checkpoint:'
        f' {type(error).__name__}: {text[:300]}'
    )


def _bare(key: str) -> str:
    return key.removeprefix('module.')


def _some(names: Iterable[Any], separator: str = ', ') -> str:
    """The first few of them, and how many more there are."""
    names = [str(name) for name in names]
    more = f'{separator}and {len(names) - SHOWN} more' if len(names) > SHOWN else ''
    return separator.join(names[:SHOWN]) + more
