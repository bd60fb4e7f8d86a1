"""Rewriters from config: four places, one precedence."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterable, Mapping
from typing import Any

from mmengine.registry import Registry

from ..errors import RewriteError
from .rewriter import FunctionRewriter


def merge_rewriters(layers: Iterable[Mapping[str, Any] | None]) -> dict[str, dict[str, Any]]:
    """Merge rewriter configs by key; a later layer goes over an earlier one.

    A plain mmengine merge would keep the arguments of a rewriter whose ``type`` was changed. Here a changed ``type``
    replaces the entry, the same or no ``type`` updates its arguments, ``None`` drops the key, and a later dict adds it
    again.

    Args:
        layers: from the weakest to the strongest: the task's default, the deploy config, ``deploy`` of the model
            config, ``--cfg-options deploy....``. A missing layer is None.

    Returns:
        Per key a dict with ``type``.

    Raises:
        RewriteError: a layer that is not a dict, an entry that is not a dict or None, or one that adds a key without
            saying its ``type``.
    """
    merged: dict[str, dict[str, Any]] = {}
    for layer in layers:
        if layer is not None and not isinstance(layer, Mapping):
            raise RewriteError(f'rewriters is {layer!r}; write dict(key=dict(type=...), ...)')
        for key, entry in copy.deepcopy(dict(layer or {})).items():
            if entry is None:
                merged.pop(key, None)
                continue
            if not isinstance(entry, Mapping):
                raise RewriteError(
                    f"rewriters.{key} is {entry!r}; write dict(type='...', ...), or None to drop the rewriter"
                )
            present = merged.get(key)
            if present is None and 'type' not in entry:
                raise RewriteError(
                    f"rewriters.{key} has no type and nothing to update: no rewriter is named '{key}'"
                    f' (there are: {", ".join(sorted(merged)) or "none"})'
                )
            if present is None or entry.get('type', present['type']) != present['type']:
                merged[key] = dict(entry)
            else:
                present.update(entry)
    return merged


def build_rewriters(configs: Mapping[str, Mapping[str, Any]], registry: Registry) -> dict[str, FunctionRewriter]:
    """Build merged configs into rewriters.

    Args:
        configs: what :func:`merge_rewriters` returned.
        registry: where the types are registered.

    Raises:
        RewriteError: an unknown type, arguments it does not take, or a class that is not a rewriter.
    """
    for location in registry._locations:  # mmengine imports these only for a scope that is a package it knows
        importlib.import_module(location)
    built = {}
    for key, config in configs.items():
        kind = config['type']
        cls = registry.get(kind) if isinstance(kind, str) else kind
        if not callable(cls):
            raise RewriteError(
                f"rewriters.{key}: '{kind}' is not registered; add the module that registers it to custom_imports:"
                " custom_imports = dict(imports=['my_project.rewriters'], allow_failed_imports=False)"
            )
        arguments = {name: value for name, value in config.items() if name != 'type'}
        try:
            rewriter = cls(**arguments)
        except TypeError as error:
            raise RewriteError(f'rewriters.{key}: {cls.__name__} cannot take {arguments}: {error}') from error
        if not isinstance(rewriter, FunctionRewriter) or not rewriter.targets:
            raise RewriteError(f'rewriters.{key}: {cls.__name__} is not a FunctionRewriter with a target')
        built[key] = rewriter
    return built


def of_exporter(rewriters: Mapping[str, FunctionRewriter], symbolic: bool) -> dict[str, FunctionRewriter]:
    """Those that an exporter takes, see :attr:`FunctionRewriter.only`.

    Args:
        rewriters: by key.
        symbolic: the exporter's own word: it runs the model on tensors without values.
    """
    other = 'tracing' if symbolic else 'symbolic'
    return {key: rewriter for key, rewriter in rewriters.items() if rewriter.only != other}
