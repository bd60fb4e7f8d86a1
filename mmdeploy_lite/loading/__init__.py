"""Reading what a user names: configs, checkpoints, images; and building the model from them.

Everything wrong with them becomes a :class:`~mmdeploy_lite.errors.DeployError` that says what to do.
"""

from __future__ import annotations

from .checkpoint import extract_state_dict, file_sha256, load_checkpoint_file, load_weights
from .config import infer_scope, load_config, read_config
from .dataset_meta import count_classes, resolve_dataset_meta
from .image import check_image
from .model import LoadedModel, build_model, model_config, use_scope

__all__ = [
    'LoadedModel',
    'build_model',
    'check_image',
    'count_classes',
    'extract_state_dict',
    'file_sha256',
    'infer_scope',
    'load_checkpoint_file',
    'load_config',
    'load_weights',
    'model_config',
    'read_config',
    'resolve_dataset_meta',
    'use_scope',
]
