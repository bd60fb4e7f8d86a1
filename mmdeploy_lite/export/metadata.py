"""The description of itself that a file carries."""

from __future__ import annotations

import json
from typing import Any

import onnx

from ..runtime.metadata import METADATA_KEY, METADATA_VERSION


def write_metadata(model: onnx.ModelProto, description: dict[str, Any]) -> None:
    """Put the description into the file's ``metadata_props``, in place.

    Nothing in it may change from run to run: the same inputs give the same bytes.

    Args:
        model: the graph.
        description: plain json types.
    """
    del model.metadata_props[:]
    entry = model.metadata_props.add()
    entry.key = METADATA_KEY
    entry.value = json.dumps({'version': METADATA_VERSION, **description}, sort_keys=True, ensure_ascii=False)


def plain(value: Any) -> Any:
    """A config value as json types: tuples become lists, classes their names."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if hasattr(value, 'tolist'):
        return value.tolist()
    return getattr(value, '__name__', None) or str(value)
