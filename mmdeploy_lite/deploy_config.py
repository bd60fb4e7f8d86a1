"""What a deployment does: one config from four places."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from mmengine.config import Config

from .errors import ConfigError
from .rewriting import merge_rewriters

_TYPED = ('exporter', 'backend', 'precision')
_KINDS = {
    'dict[str, Any] | None': ((Mapping, type(None)), 'a name, a dict or None'),
    'bool': (bool, 'True or False'),
    'bool | None': ((bool, type(None)), 'True, False or None'),
    'str | None': ((str, type(None)), 'a name or None'),
}

_EXACT = ('fp32', 'float32', 'None')  # precisions that ask for no second file

_MOST_PIXELS = 2**28
"""Of an input, whose three channels are then 3.2 GB. A digit too many takes all memory, and other programs with it."""


@dataclass
class DeployConfig:
    """The settings of one deployment; see ``configs/_base_/onnxruntime.py`` for their meaning.

    Attributes:
        exporter: of the registry EXPORTERS.
        backend: of the registry BACKENDS.
        input: ``dtype``, ``shape`` (h, w) or None, ``batch_size``, ``preprocess``, ``runtime_pipeline``.
        outputs: what the file answers; None for the task's default.
        rescale: answers in original pixels.
        precision: of the registry PRECISIONS, for a second, less exact file; None for none. A name stands for ``type``.
        external_data: write the weights into a file of their own, as is done above 2 GB.
        optimize: clean the graph up.
        winograd: compute convolutions by Winograd's algorithm, where that is less work; None where the backend runs on
            a CPU.
        tolerance: see :class:`mmdeploy_lite.check.tolerance.Tolerance`.
        audit: ``allow``: lines at which the tracer may warn.
        rewriters: merged, by key.
        required: keys of rewriters that a user named: those that are not in the task's default with the same type.
    """

    exporter: dict[str, Any] = field(default_factory=dict)
    backend: dict[str, Any] = field(default_factory=dict)
    input: dict[str, Any] = field(default_factory=dict)
    outputs: str | None = None
    rescale: bool = True
    precision: dict[str, Any] | None = None
    external_data: bool = False
    optimize: bool = True
    winograd: bool | None = None
    tolerance: dict[str, Any] = field(default_factory=dict)
    audit: dict[str, Any] = field(default_factory=dict)
    rewriters: dict[str, dict[str, Any]] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)


def resolve_deploy_config(default: Mapping[str, Any], *layers: Mapping[str, Any] | None) -> DeployConfig:
    """Merge the task's default with what users say, the later layer over the earlier.

    Args:
        default: ``deploy`` of the task's own config.
        *layers: ``deploy`` of the deploy config, of the model config, and from ``--cfg-options deploy....``; None where
            absent.

    Raises:
        ConfigError: an unknown key, or a value of the wrong kind.
        RewriteError: see :func:`mmdeploy_lite.rewriting.merge_rewriters`.
    """
    known = {item.name for item in fields(DeployConfig)} - {'required'}
    given = [default, *(layer or {} for layer in layers)]
    merged: dict[str, Any] = {}
    for layer in given:
        if not isinstance(layer, Mapping):
            raise ConfigError(f'deploy is {layer!r}; it must be a dict')
        if unknown := sorted(set(layer) - known):
            raise ConfigError(f'deploy has the unknown key {", ".join(unknown)}; known are {", ".join(sorted(known))}')
        for key, value in layer.items():
            if key == 'precision' and isinstance(value, str):
                value = None if value in _EXACT else dict(type=value)
            if key != 'rewriters':
                merged[key] = _merge(key, merged.get(key), copy.deepcopy(value))
    rewriters = merge_rewriters([layer.get('rewriters') for layer in given])
    # a user's deploy config whose base is a shipped one repeats the default; only what differs is the user's wish
    default_rewriters = default.get('rewriters') or {}
    named = {key for key, entry in rewriters.items() if entry['type'] != default_rewriters.get(key, {}).get('type')}
    config = DeployConfig(**merged, rewriters=rewriters, required=named)
    _validate_kinds(config)
    _validate_input(config.input)
    _validate_audit(config.audit)
    return config


def _merge(key: str, old: Any, new: Any) -> Any:
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    if key in _TYPED and 'type' in new and new['type'] != old.get('type'):
        return dict(new)  # the old type's arguments are not the new one's
    return {**old, **new}


def _validate_kinds(config: DeployConfig) -> None:
    for item in fields(DeployConfig):
        value = getattr(config, item.name)
        kinds, wanted = _KINDS.get(str(item.type), (Mapping, 'a dict'))
        if item.name != 'required' and not isinstance(value, kinds):
            raise ConfigError(f'deploy.{item.name} is {value!r}; it must be {wanted}')


def _validate_audit(settings: Mapping[str, Any]) -> None:
    if unknown := sorted(set(settings) - {'allow'}):
        raise ConfigError(f'deploy.audit has the unknown key {", ".join(unknown)}; known is allow')


def _validate_input(settings: Mapping[str, Any]) -> None:
    known = {'dtype', 'shape', 'batch_size', 'preprocess', 'runtime_pipeline'}
    if unknown := sorted(set(settings) - known):
        names = ', '.join(unknown), ', '.join(sorted(known))
        raise ConfigError('deploy.input has the unknown key {}; known are {}'.format(*names))
    batch = settings.get('batch_size', 1)
    if batch is not None and (not isinstance(batch, int) or isinstance(batch, bool) or batch < 1):
        raise ConfigError(f'deploy.input.batch_size is {batch!r}; it must be an integer of 1 or more, or None for any')
    carries = settings.get('runtime_pipeline', True)
    if not isinstance(carries, bool):
        raise ConfigError(f'deploy.input.runtime_pipeline is {carries!r}; it must be True or False')
    check_shape(settings.get('shape'))


def check_shape(shape: Any) -> tuple[int, int] | None:
    """(h, w) as two positive integers, or None.

    Raises:
        ConfigError: anything else.
    """
    if shape is None:
        return None
    try:
        sizes = tuple(shape)
    except TypeError:
        sizes = (shape,)
    if len(sizes) != 2 or not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes):
        raise ConfigError(
            f'the shape {shape!r} is not two positive integers, height and width in pixels: --shape 640 640'
        )
    if sizes[0] * sizes[1] > _MOST_PIXELS:
        raise ConfigError(
            f'the shape {sizes[0]} x {sizes[1]} has {sizes[0] * sizes[1] / 1e6:,.0f} megapixels, more than fit into'
            ' memory: --shape takes height and width in pixels, as --shape 640 640'
        )
    return sizes


def deploy_section(cfg: Config, path: str) -> Mapping[str, Any]:
    """``deploy`` of a deploy config file.

    Raises:
        ConfigError: it has none.
    """
    section = cfg.get('deploy')
    if section is None:
        raise ConfigError(f"the deploy config {path} has no 'deploy'; write deploy = dict(...)")
    return plain_dict(section)


def plain_dict(value: Any) -> Any:
    """mmengine's ConfigDict as plain containers, whose missing keys are errors and not empty dicts."""
    if isinstance(value, Mapping):
        return {key: plain_dict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain_dict(item) for item in value)
    return value


def split_options(options: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """``--cfg-options`` of the model, and those under ``deploy.`` as a nested dict of their own.

    They are kept apart because mmengine would merge ``deploy.rewriters.x.type=New`` into the old entry and keep its
    arguments.

    Raises:
        ConfigError: an option goes into something that is not a dict.
    """
    model: dict[str, Any] = {}
    deploy: dict[str, Any] = {}
    for name, value in (options or {}).items():
        first, *rest = name.split('.')
        if first != 'deploy':
            model[name] = value
            continue
        value = None if value == 'None' else copy.deepcopy(value)
        if not rest:
            if not isinstance(value, Mapping):
                raise ConfigError(f'deploy is {value!r}; it must be a dict')
            deploy.update(value)
            continue
        if rest == ['precision'] and isinstance(value, str) and value not in _EXACT:
            rest = ['precision', 'type']  # beside deploy.precision.calibration=FOLDER and the like
        node = deploy
        for part in rest[:-1]:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise ConfigError(f'{name}={value} does not fit: {part} is {node!r}, not a dict')
        node[rest[-1]] = value
    return model, deploy
