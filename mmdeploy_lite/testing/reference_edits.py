"""What the libraries' own configs and heads need before PyTorch itself can run them here.

The edits are made before anything is compared, so both sides have them; the zoo lists them with each entry.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mmengine.config import Config
from torch import nn


def edit_config(cfg: Config) -> list[str]:
    """Change a config in place.

    Returns:
        What was changed and why, a line each.
    """
    edits = []
    for node in _dicts(cfg.get('model')):
        if node.get('use_torchvision'):
            node['use_torchvision'] = False
            edits.append("torchvision's RoIAlign, which is not installed, is mmcv's")
        teacher = node.get('teacher_config')
        if isinstance(teacher, str) and not Path(teacher).is_file():
            node['teacher_config'] = str(_wheel() / teacher)
            edits.append("the teacher's config is the one in the mmdet wheel")
    return list(dict.fromkeys(edits))


def edit_model(model: nn.Module) -> list[str]:
    """Change a model in place; see :func:`edit_config`."""
    edits = []
    for module in model.modules():
        if type(module).__name__ == 'SSDHead' and not hasattr(module, 'loss_cls'):
            module.loss_cls = None
            edits.append('SSDHead of mmdet 3.3 reads loss_cls and has none: None')
    return edits


def _dicts(node: Any) -> Iterator[Any]:
    if isinstance(node, Mapping):
        yield node
    for item in node.values() if isinstance(node, Mapping) else node if isinstance(node, (list, tuple)) else ():
        yield from _dicts(item)


def _wheel() -> Path:
    """Where the mmdet wheel has its ``configs``."""
    return Path(importlib.util.find_spec('mmdet').origin).parent / '.mim'
