"""The digest that an exported file ends with: what is run is what was exported, or it is refused.

A flipped bit in a weight gives another answer without a word, and a damaged graph can crash ONNX Runtime or make it
allocate without end. So a file is hashed before anything else reads it. That finds accidents; someone who changes the
file on purpose can seal it again.

An ONNX file is a protobuf message, a sequence of fields: the seal is one more entry of ``metadata_props`` at its end.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from ..errors import BackendError
from .metadata import METADATA_KEY

SEAL_KEY = 'mmdeploy_lite_sha256'
DATA_KEY = 'mmdeploy_lite_data'
"""Where a file has weights beside it: json, their names and SHA-256."""

_METADATA_FIELD = 14
_LENGTH = 64  # of a SHA-256 in hex
_BLOCK = 1 << 20


def check_seal(path: str | Path) -> dict[str, str]:
    """Whether a file is as it was written.

    Args:
        path: the ``.onnx`` file.

    Returns:
        Its ``metadata_props``.

    Raises:
        BackendError: it cannot be read, is no ONNX file, not made by this package, or not as it was written.
    """
    try:
        with open(path, 'rb') as stream:
            size = os.fstat(stream.fileno()).st_size
            digest = _seal_of(stream, size)
            found = _digest(stream, size - len(_entry(SEAL_KEY, '0' * _LENGTH))) if digest else None
            if digest != found:
                raise BackendError(
                    f'{path} is not what was exported: its content has another digest than the one it ends with. It'
                    ' was damaged, so copy or export it again; or it was edited, and if that was meant, seal it again:'
                    ' mmdeploy_lite.runtime.seal(path)'
                )
            properties = _metadata_props(stream, size)
    except OSError as error:
        raise BackendError(f'{path} cannot be read: {error.strerror or error}') from error
    if properties is None:
        raise BackendError(f'{path} ({size} bytes) is not an ONNX file, or not all of one')
    if METADATA_KEY not in properties:
        raise BackendError(f"{path}: the file has no '{METADATA_KEY}' metadata: it was not exported by mmdeploy_lite")
    if digest is None and '"sealed": true' in properties[METADATA_KEY]:
        raise BackendError(f'{path} is not all of what was exported: the digest at its end is missing; copy it again')
    _check_data(Path(path), properties.get(DATA_KEY))
    return properties


def seal(path: str | Path, data: Mapping[str, str] | None = None) -> None:
    """End a file with its digest, in place; one that it ends with already is replaced.

    Args:
        path: the ``.onnx`` file.
        data: names of the files beside it that hold its weights, and their SHA-256; None where there are none, or they
            are named already.
    """
    with open(path, 'r+b') as stream:
        size = os.fstat(stream.fileno()).st_size
        if _seal_of(stream, size) is not None:
            size -= len(_entry(SEAL_KEY, '0' * _LENGTH))
        stream.seek(size)
        if data is not None:
            size += stream.write(_entry(DATA_KEY, json.dumps(dict(data), sort_keys=True)))
        stream.truncate()
        digest = _digest(stream, size)
        stream.seek(size)
        stream.write(_entry(SEAL_KEY, digest))


def file_digest(path: str | Path) -> str:
    """SHA-256 of a file, in hex."""
    with open(path, 'rb') as stream:
        return _digest(stream, os.fstat(stream.fileno()).st_size)


def _check_data(path: Path, entry: str | None) -> None:
    """Whether the weights beside a file are those that it was written with."""
    if entry is None:
        return
    try:
        files = dict(json.loads(entry))
    except (ValueError, TypeError, RecursionError) as error:
        raise BackendError(f"{path}: the file's '{DATA_KEY}' metadata cannot be read: {error}") from None
    for name, digest in files.items():
        file = path.parent / str(name)
        if not file.is_file():
            raise BackendError(f'{path} has its weights in {name}, which is not beside it; move both together')
        if file_digest(file) != digest:
            raise BackendError(f'{file} is not what was exported: it has another digest; copy it again')


def _entry(key: str, value: str) -> bytes:
    """A field of the message: one entry of ``metadata_props``."""
    parts = b''.join(
        bytes([number << 3 | 2]) + _varint(len(text)) + text
        for number, text in ((1, key.encode()), (2, value.encode()))
    )
    return bytes([_METADATA_FIELD << 3 | 2]) + _varint(len(parts)) + parts


def _varint(value: int) -> bytes:
    groups = []
    while True:
        value, low = value >> 7, value & 0x7F
        if not value:
            return bytes([*groups, low])
        groups.append(low | 0x80)


def _seal_of(stream: BinaryIO, size: int) -> str | None:
    """The digest that a file ends with, None where there is none."""
    whole = len(_entry(SEAL_KEY, '0' * _LENGTH))
    head = _entry(SEAL_KEY, '0' * _LENGTH)[:-_LENGTH]
    if size < whole:
        return None
    stream.seek(size - whole)
    tail = stream.read(whole)
    return tail[len(head) :].decode('latin1') if tail.startswith(head) else None


def _digest(stream: BinaryIO, size: int) -> str:
    """SHA-256 of the first ``size`` bytes, in hex."""
    stream.seek(0)
    digest = hashlib.sha256()
    while size > 0 and (block := stream.read(min(size, _BLOCK))):
        digest.update(block)
        size -= len(block)
    return digest.hexdigest()


def _metadata_props(stream: BinaryIO, size: int) -> dict[str, str] | None:
    """The ``metadata_props`` of a file, the graph skipped; None where it is no sequence of fields."""
    found: dict[str, str] = {}
    stream.seek(0)
    while stream.tell() < size:
        tag = _read_varint(stream)
        if tag is None or not tag >> 3:
            return None
        kind = tag & 7
        length = {0: 0, 1: 8, 5: 4}.get(kind)
        if kind == 0 and _read_varint(stream) is None:
            return None
        if kind == 2:
            length = _read_varint(stream)
        if length is None or stream.tell() + length > size:
            return None
        if tag == _METADATA_FIELD << 3 | 2:
            entry = _pair(stream.read(length))
            if entry is None:
                return None
            found[entry[0]] = entry[1]
        else:
            stream.seek(length, os.SEEK_CUR)
    return found


def _pair(data: bytes) -> tuple[str, str] | None:
    """Key and value of one entry."""
    stream, found = io.BytesIO(data), {1: '', 2: ''}
    while stream.tell() < len(data):
        tag, length = _read_varint(stream), _read_varint(stream)
        if tag not in (10, 18) or length is None or stream.tell() + length > len(data):
            return None
        try:
            found[tag >> 3] = stream.read(length).decode()
        except UnicodeDecodeError:
            return None
    return found[1], found[2]


def _read_varint(stream: BinaryIO) -> int | None:
    value = 0
    for shift in range(0, 70, 7):
        byte = stream.read(1)
        if not byte:
            return None
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    return None
