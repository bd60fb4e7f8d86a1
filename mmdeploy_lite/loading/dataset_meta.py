"""Class names and colours of a model: from its checkpoint, else from its config's dataset."""

from __future__ import annotations

import colorsys
import inspect
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.registry import DATASETS
from torch import nn

HEADS = ('panoptic_fusion_head', 'panoptic_head', 'roi_head', 'bbox_head', 'decode_head', 'mask_head', 'rpn_head')
"""Attributes under which a model holds the head that knows its number of classes, the decisive one first."""


def count_classes(model: nn.Module) -> int | None:
    """The number of classes that the model's head tells apart, or None when no head says it."""
    for name in HEADS:
        head = getattr(model, name, None)
        if isinstance(head, nn.ModuleList):  # a cascade; its last stage decides
            head = head[-1] if len(head) else None
        if head is None:
            continue
        if isinstance(getattr(head, 'num_classes', None), int):
            return head.num_classes
        inner = count_classes(head)
        if inner is not None:
            return inner
    return None


def resolve_dataset_meta(
    checkpoint: Mapping[str, Any] | None, cfg: Config, scope: str, num_classes: int | None
) -> dict[str, Any]:
    """Class names and colours.

    The checkpoint's own come first, then those of the config's test, validation or training dataset; either only when
    there are as many as the model has classes. Else the classes are numbered, with one warning.

    Args:
        checkpoint: what ``load_checkpoint_file`` returned, or None.
        cfg: the model's config.
        scope: ``'mmdet'`` or ``'mmseg'``, whose datasets are looked up.
        num_classes: see :func:`count_classes`; None accepts any number.

    Returns:
        ``classes``, a tuple of names, ``palette``, a list of one (r, g, b) per class, 0-255, and what else the
        dataset's meta holds, with keys in lower case.
    """
    found = {'the checkpoint': _of_checkpoint(checkpoint), 'the config': _of_config(cfg, scope)}
    named = {source: _names(meta.get('classes')) for source, meta in found.items()}
    for source, names in named.items():
        if names and num_classes in (None, len(names)):
            palettes = [found[source].get('palette'), found['the config'].get('palette')]
            palette = next((palette for palette in palettes if palette is not None), None)
            return {**found[source], 'classes': names, 'palette': _colours(palette, len(names))}
    tried = [f'{source} names {len(names)}' for source, names in named.items() if names]
    classes = tuple(f'class_{index}' for index in range(num_classes or 0))
    print_log(
        f'the model has {len(classes)} classes, but'
        f' {", ".join(tried) or "neither the checkpoint nor the config names any"}:'
        ' they are called class_0, class_1, ...',
        'current',
        logging.WARNING,
    )
    return {'classes': classes, 'palette': _colours(None, len(classes))}


def _of_checkpoint(checkpoint: Mapping[str, Any] | None) -> dict[str, Any]:
    meta = (checkpoint or {}).get('meta')
    if not isinstance(meta, Mapping):
        return {}
    own = meta.get('dataset_meta')
    if not isinstance(own, Mapping):  # before mmengine, CLASSES and PALETTE stood in meta itself
        own = {key: meta[key] for key in ('CLASSES', 'PALETTE') if key in meta}
    return {str(key).lower(): value for key, value in own.items()}


def _of_config(cfg: Config, scope: str) -> dict[str, Any]:
    for loader in ('test_dataloader', 'val_dataloader', 'train_dataloader'):
        dataset = (cfg.get(loader) or {}).get('dataset')
        while isinstance(dataset, Mapping) and (
            'dataset' in dataset or 'datasets' in dataset
        ):  # repeated, concatenated, ...
            dataset = dataset.get('dataset') or next(iter(dataset['datasets']), None)
        if not isinstance(dataset, Mapping):
            continue
        kind = dataset.get('type')
        if isinstance(kind, str):
            with DATASETS.switch_scope_and_registry(scope) as registry:
                kind = registry.get(kind)
        own = getattr(kind, 'METAINFO', {}) if inspect.isclass(kind) else {}
        meta = {key.lower(): value for key, value in {**own, **(dataset.get('metainfo') or {})}.items()}
        if meta.get('classes'):
            return meta
    return {}


def _names(classes: Any) -> tuple[str, ...]:
    """The names in a list, in a single string, or in the file that the string names, as mmengine reads it."""
    if isinstance(classes, str):
        file = Path(classes)
        classes = file.read_text(encoding='utf-8').splitlines() if file.is_file() else [classes]
    return tuple(str(name) for name in classes) if _is_list(classes) else ()


def _colours(palette: Any, count: int) -> list[tuple[int, int, int]]:
    """One (r, g, b) per class; even steps round the colour circle where the palette has too few."""
    if _is_list(palette) and len(palette) >= count and all(_is_list(colour) and len(colour) == 3 for colour in palette):
        return [tuple(int(value) for value in colour) for colour in palette[:count]]
    hues = [(index * 0.618034) % 1 for index in range(count)]  # the golden ratio keeps neighbours far apart
    return [tuple(round(255 * value) for value in colorsys.hsv_to_rgb(hue, 0.75, 0.9)) for hue in hues]


def _is_list(value: Any) -> bool:
    return (isinstance(value, Sequence) and not isinstance(value, str)) or hasattr(value, 'tolist')
