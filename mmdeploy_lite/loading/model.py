"""From a config and a checkpoint to the model in evaluation mode."""

from __future__ import annotations

import copy
import importlib
import itertools
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.model.utils import revert_sync_batchnorm
from mmengine.registry import DefaultScope
from torch import nn

from .. import ops  # noqa: F401  (mmdet and mmseg need mmcv.ops)
from ..errors import ConfigError, DeployError, UnsupportedError
from .checkpoint import extract_state_dict, file_sha256, load_checkpoint_file, load_weights
from .config import close_names, infer_scope
from .dataset_meta import count_classes, resolve_dataset_meta

_scope_numbers = itertools.count()


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to predict.

    Attributes:
        model: in evaluation mode, without gradients; has ``cfg`` and ``dataset_meta`` as the libraries' own loaders
            set them.
        cfg: the config it was built from, unchanged.
        scope: ``'mmdet'`` or ``'mmseg'``.
        dataset_meta: ``classes`` (names), ``palette`` (one (r, g, b) per class, 0-255), and what else the dataset's
            meta holds.
        num_classes: how many classes the head tells apart; None when it does not say.
        checkpoint: the file the weights came from, or None.
        checkpoint_sha256: of that file, in hex, or None.
    """

    model: nn.Module
    cfg: Config
    scope: str
    dataset_meta: dict[str, Any]
    num_classes: int | None
    checkpoint: str | None
    checkpoint_sha256: str | None


def build_model(
    cfg: Config,
    checkpoint: str | Path | None,
    device: str = 'cpu',
    allow_mismatch: bool = False,
    unsafe_checkpoint: bool = False,
) -> LoadedModel:
    """Build the model of a config and load its weights.

    Pretrained backbones that the config names are not loaded: nothing is ever downloaded. SyncBN becomes BN. Makes
    the library of the model mmengine's default scope, see :func:`use_scope`.

    Args:
        cfg: from :func:`~mmdeploy_lite.loading.load_config`; is not changed.
        checkpoint: a local file, or None for a model with its initial weights.
        device: where the model goes.
        allow_mismatch: go on with a checkpoint that does not fit, see :func:`~mmdeploy_lite.loading.load_weights`.
        unsafe_checkpoint: see :func:`~mmdeploy_lite.loading.load_checkpoint_file`.

    Raises:
        ConfigError: the model cannot be built from the config.
        CheckpointError: the checkpoint cannot be read or does not fit.
        UnsupportedError: a library that the model needs is not installed, or there is no such device.
    """
    scope = infer_scope(cfg)
    loaded = None if checkpoint is None else load_checkpoint_file(checkpoint, unsafe_checkpoint)
    use_scope(scope)
    model = revert_sync_batchnorm(_build(model_config(cfg, scope), cfg, scope))
    if loaded is not None:
        load_weights(model, extract_state_dict(loaded, checkpoint), checkpoint, allow_mismatch)
    num_classes = count_classes(model)
    model.cfg = cfg
    model.dataset_meta = resolve_dataset_meta(loaded, cfg, scope, num_classes)
    _move(model, device)
    model.eval()  # not chained: a detector's own train() may return None
    model.requires_grad_(False)
    return LoadedModel(
        model=model,
        cfg=cfg,
        scope=scope,
        dataset_meta=model.dataset_meta,
        num_classes=num_classes,
        checkpoint=None if checkpoint is None else str(checkpoint),
        checkpoint_sha256=None if checkpoint is None else file_sha256(checkpoint),
    )


def use_scope(scope: str) -> None:
    """Register all modules of a library and make it mmengine's default scope, in which types without a prefix are
    looked up.

    Args:
        scope: ``'mmdet'`` or ``'mmseg'``.

    Raises:
        UnsupportedError: the library cannot be imported.
    """
    try:
        importlib.import_module(f'{scope}.utils').register_all_modules(init_default_scope=False)
    except (ImportError, AssertionError) as error:  # the libraries assert the versions of mmcv and mmengine
        raise UnsupportedError(
            f"{scope} cannot be imported: {error}; pip install 'mmdeploy_lite[export]' brings what it needs"
        ) from error
    current = DefaultScope.get_current_instance()
    if current is None or current.scope_name != scope:
        # The newest instance counts, and a name is taken only once: going back to a scope needs a new name.
        DefaultScope.get_instance(f'mmdeploy_lite-{next(_scope_numbers)}-{scope}', scope_name=scope)


def model_config(cfg: Config, scope: str) -> Any:
    """A copy of ``cfg.model`` as it is built for evaluation: nothing to download, no settings for training.

    Args:
        cfg: the model's config.
        scope: ``'mmdet'`` or ``'mmseg'``.
    """
    model = copy.deepcopy(cfg.model)
    if cfg.get('data_preprocessor') is not None:  # as mmengine's Runner does
        model.setdefault('data_preprocessor', copy.deepcopy(cfg.data_preprocessor))
    if scope == 'mmseg':  # as mmseg.apis.init_model does
        model['train_cfg'] = None
    _drop_pretrained(model)
    return model


def _drop_pretrained(node: Any) -> None:
    """Take out, at every depth, what would make a constructor fetch weights; the checkpoint brings them all."""
    if isinstance(node, (list, tuple)):
        for item in node:
            _drop_pretrained(item)
    if not isinstance(node, Mapping):
        return
    for key, value in list(node.items()):
        if key == 'init_cfg' and _is_pretrained(value):
            node[key] = None
        elif key == 'pretrained' and value:
            node[key] = False if isinstance(value, bool) else None
        elif key == 'teacher_ckpt':
            node[key] = None
        else:
            _drop_pretrained(value)


def _is_pretrained(init_cfg: Any) -> bool:
    if isinstance(init_cfg, (list, tuple)):
        return any(_is_pretrained(item) for item in init_cfg)
    return isinstance(init_cfg, Mapping) and ('Pretrained' in str(init_cfg.get('type')) or 'checkpoint' in init_cfg)


def _build(model: Any, cfg: Config, scope: str) -> nn.Module:
    registry = importlib.import_module(f'{scope}.registry').MODELS
    try:
        with warnings.catch_warnings():
            # The libraries warn about their own defaults and their own deprecated calls: nothing a user could change.
            warnings.filterwarnings('ignore', module=r'(mmdet|mmseg|mmcv|mmengine)\.')
            return registry.build(model)
    except DeployError:
        raise
    except Exception as error:
        raise _explain(error, cfg, registry) from error


def _explain(error: Exception, cfg: Config, registry: Any) -> DeployError:
    """What kept the model from being built, as the error to show."""
    text = ' '.join(str(error.args[0] if isinstance(error, KeyError) else error).split())
    unknown = re.search(r'([\w.]+) is not in the (\S+) registry', text)
    if unknown:
        name, place = unknown.groups()
        package, dot, _ = name.partition('.')
        if dot and importlib.util.find_spec(package) is None:
            return UnsupportedError(f"config {cfg.filename} needs '{name}' of {package}, which is not installed")
        module = f'{package}.models' if dot else 'my_project.my_module'
        return ConfigError(
            f"config {cfg.filename}: '{name}' is not in the {place} registry"
            f'{close_names(name, list(registry.module_dict))}.'
            ' If it is your own, let the config import the module that registers it:'
            f" custom_imports = dict(imports=['{module}'], allow_failed_imports=False)"
        )
    if isinstance(error, ImportError) or re.search(r'not installed|\binstall\b', text):
        return UnsupportedError(f'the model of config {cfg.filename} needs a package that is missing: {text}')
    return ConfigError(
        f"config {cfg.filename}: the model '{cfg.model.type}' cannot be built: {type(error).__name__}: {text}"
    )


def _move(model: nn.Module, device: str) -> None:
    try:
        model.to(torch.device(device))
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built with CUDA
        raise UnsupportedError(
            f"device '{device}' cannot be used: {' '.join(str(error).split())[:200]}; --device cpu always can"
        ) from error
