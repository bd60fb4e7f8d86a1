"""An exported file's description of itself: reading it, and refusing what is no such description."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import BackendError

METADATA_KEY = 'mmdeploy_lite'
METADATA_VERSION = 1

_MOST = 1 << 20
"""No size in pixels, and no number of channels, is larger."""


def read_metadata(properties: Mapping[str, str]) -> dict[str, Any]:
    """The file's own description of itself.

    Args:
        properties: the file's ``metadata_props``.

    Raises:
        BackendError: the file was not made by this package, or by a later version of it, or what it says of itself is
            no description.
    """
    if METADATA_KEY not in properties:
        raise BackendError(f"the file has no '{METADATA_KEY}' metadata: it was not exported by mmdeploy_lite")
    try:
        metadata = json.loads(properties[METADATA_KEY])
        version = int(metadata['version'])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise BackendError(f"the file's '{METADATA_KEY}' metadata cannot be read: {error}") from None
    if version > METADATA_VERSION:
        raise BackendError(
            f"the file's metadata has version {version}, this package reads up to {METADATA_VERSION};"
            ' update mmdeploy_lite'
        )
    for key, (test, words) in _TESTS.items():
        if key in metadata and not test(metadata[key]):
            raise BackendError(
                f"the file's '{METADATA_KEY}' metadata cannot be read: {key} should be {words}, not"
                f' {_short(metadata[key])}; export it again'
            )
    return metadata


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f'{text[:77]}...'


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e30


def _size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST


def _list_of(test: Callable[[Any], bool], length: int | None = None) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(test, value)) and length in (None, len(value))


def _or_null(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or test(value)


def _is(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


def _one_of(*words: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in words


def _color(value: Any) -> bool:
    return _list_of(lambda part: isinstance(part, int) and 0 <= part <= 255, 3)(value)


def _step(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get('type'), str)


def _shapes(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get('reason', ''), str)
        and _list_of(_size, 2)(value.get('least', [1, 1]))
    )


def _preprocess(value: Any) -> bool:
    numbers = _or_null(_list_of(_number))
    return (
        isinstance(value, dict)
        and isinstance(value.get('swap_channels'), bool)
        and numbers(value.get('mean'))
        and numbers(value.get('std'))
        and (value.get('mean') is None) == (value.get('std') is None)
        and all(value.get('std') or [1])
        and _number(value.get('pad_value'))
        and _size(value.get('divisor'))
        and _or_null(_list_of(_size, 2))(value.get('size'))
    )


_TESTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    'task': (_is(str), 'a word'),
    'codebase': (_one_of('mmdet', 'mmseg'), 'mmdet or mmseg'),
    'classes': (_list_of(_is(str)), 'a list of names'),
    'palette': (_list_of(_color), 'a list of (r, g, b), 0-255'),
    'rescale': (_is(bool), 'true or false'),
    'dtype': (_one_of('float32', 'uint8'), 'float32 or uint8'),
    'pipeline': (_or_null(_list_of(_step)), 'a list of steps, each with its type'),
    'input': (_one_of('pipeline', 'preprocessed'), 'pipeline or preprocessed'),
    'threshold': (_or_null(_number), 'a number'),
    'preprocess': (_preprocess, 'the arguments of a data preprocessor'),
    'shapes': (_shapes, 'sizes in pixels'),
    'inputs': (_list_of(_is(str)), 'a list of names'),
    'outputs': (_is(dict), 'sizes by name'),
}
"""What is read of it: a test of the value, and what it should be."""
