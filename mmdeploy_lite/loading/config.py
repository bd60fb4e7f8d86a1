"""Configs: reading one, and saying what is wrong with it."""

from __future__ import annotations

import difflib
import importlib
import inspect
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from mmengine.config import Config
from mmengine.logging import print_log

from .. import ops  # noqa: F401  (custom_imports may import mmdet or mmseg, which need mmcv.ops)
from ..errors import ConfigError
from .packages import find_package_config, unknown_package_config

SCOPES = ('mmdet', 'mmseg')
"""The libraries whose models can be deployed."""


def read_config(path_or_name: str | Path, cfg_options: Mapping[str, Any] | None = None) -> Config:
    """Read any config, a model's or a deploy config, and import its ``custom_imports``.

    Args:
        path_or_name: a file (``.py``, ``.json``, ``.yaml``), or ``package::relative/path`` of a config that an
            installed package ships: ``mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py``.
        cfg_options: values that go over those of the file, by dotted key: ``{'model.test_cfg.mode': 'slide'}``.

    Raises:
        ConfigError: the config or a base of it is missing or cannot be read, an option does not fit into it, or a
            module of ``custom_imports`` cannot be imported.
    """
    path = _resolve(str(path_or_name))
    try:
        # custom_imports run below: cfg_options may change them, and there the module at fault is known
        cfg = Config.fromfile(path, import_custom_modules=False)
    except ConfigError:
        raise
    except Exception as error:
        raise _explain(error, path) from error
    if cfg_options:
        try:
            cfg.merge_from_dict(dict(cfg_options))
        except Exception as error:
            raise ConfigError(f'cfg-options {dict(cfg_options)} do not fit into {path}: {_one_line(error)}') from error
    _import_custom_modules(cfg, path)
    return cfg


def load_config(path_or_name: str | Path, cfg_options: Mapping[str, Any] | None = None) -> Config:
    """Read the config of a model.

    Args:
        path_or_name: see :func:`read_config`.
        cfg_options: see :func:`read_config`.

    Raises:
        ConfigError: as :func:`read_config`, and for a config without a model.
    """
    cfg = read_config(path_or_name, cfg_options)
    model = cfg.get('model')
    if not isinstance(model, Mapping) or 'type' not in model:
        raise ConfigError(
            f"config {cfg.filename} has no model (`model = dict(type='...', ...)`);"
            ' give the config that the model was trained with'
        )
    return cfg


def infer_scope(cfg: Config) -> str:
    """Which library's registry the model is built from: ``'mmdet'`` or ``'mmseg'``.

    ``default_scope`` says it; without one, the types of the model and of its data preprocessor.

    Raises:
        ConfigError: neither says it.
    """
    if cfg.get('default_scope') in SCOPES:
        return cfg.default_scope
    parts = [cfg.model, cfg.model.get('data_preprocessor'), cfg.get('data_preprocessor')]
    parts = [part for part in parts if isinstance(part, Mapping)]
    for part in parts:
        named = [part.get('_scope_'), _package_of(part.get('type'))]
        found = next((scope for scope in named if scope in SCOPES), None)
        if found:
            return found
    registries = {scope: _models_of(scope) for scope in SCOPES}
    for part in parts:
        found = [scope for scope, names in registries.items() if part.get('type') in names]
        if len(found) == 1:
            return found[0]
    raise ConfigError(
        f"config {cfg.filename}: cannot tell whether model.type '{cfg.model.type}' is a model of mmdet or of mmseg"
        f" (default_scope is {cfg.get('default_scope')!r}); set default_scope = 'mmdet' or 'mmseg'"
    )


def close_names(name: str, known: list[str]) -> str:
    """``'; did you mean A, B?'`` with the known names closest to ``name``, or an empty string."""
    close = difflib.get_close_matches(name, known, n=3)
    return f'; did you mean {", ".join(close)}' if close else ''


def _package_of(kind: Any) -> str | None:
    """The package that a type names: the one a class is from, or the prefix of ``'mmdet.RetinaNet'``."""
    if inspect.isclass(kind):
        return kind.__module__.partition('.')[0]
    package, dot, _ = str(kind).partition('.')
    return package if dot else None


def _models_of(scope: str) -> dict[str, type]:
    try:
        importlib.import_module(f'{scope}.models')
        return importlib.import_module(f'{scope}.registry').MODELS.module_dict
    except ImportError:
        return {}


def _resolve(path_or_name: str) -> str:
    """The file to read."""
    if '::' in path_or_name:
        path = find_package_config(path_or_name)
        if path is None:
            raise unknown_package_config(path_or_name)
        return str(path)
    path = Path(path_or_name).expanduser()
    if path.is_dir():
        raise ConfigError(f'config {path_or_name} is a directory; give a .py, .json or .yaml file in it')
    if not path.is_file():
        raise ConfigError(
            f'config {path_or_name} does not exist; give the path of a file,'
            ' or the name of a config that a library ships, like mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py'
        )
    return str(path)


def _import_custom_modules(cfg: Config, path: str) -> None:
    custom = cfg.get('custom_imports')
    if not custom:
        return
    modules = custom.get('imports') if isinstance(custom, Mapping) else None
    modules = [modules] if isinstance(modules, str) else modules
    if not isinstance(modules, (list, tuple)) or not all(isinstance(module, str) for module in modules):
        raise ConfigError(
            f'config {path}: custom_imports is {custom};'
            " write dict(imports=['my_project.my_module'], allow_failed_imports=False)"
        )
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:
            message = f"config {path}: custom_imports names '{module}', which cannot be imported: {_one_line(error)}"
            if custom.get('allow_failed_imports'):
                print_log(f'{message}; going on without it (allow_failed_imports=True)', 'current', logging.WARNING)
                continue
            raise ConfigError(f'{message}; install it, or add the directory it lies in to PYTHONPATH') from error


def _explain(error: Exception, path: str) -> ConfigError:
    """What went wrong while mmengine read ``path`` or a base of it, as the error to show."""
    files, line = _where(error.__traceback__, path)
    failed = files[-1]
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return ConfigError(f'config {failed} has a syntax error in line {error.lineno}: {error.msg}')
    if isinstance(error, FileNotFoundError) and line is None:
        said = re.search(r'file "(.+)" does not exist', str(error))
        missing = said[1] if said else error.filename
        naming = next(file for file in reversed(files) if file != missing)
        package = re.search(r'([^/\\]+)[/\\]\.mim[/\\]configs[/\\](.+)$', missing)
        if package:
            found = unknown_package_config(f'{package[1]}::{package[2]}')
            return ConfigError(f'config {naming} names a base that is missing: {found}')
        return ConfigError(f'config {naming} names a base that does not exist: {missing}; correct its _base_')
    if isinstance(error, ModuleNotFoundError) and error.name == 'pkg_resources':
        return ConfigError(
            f'config {failed}: mmengine needs pkg_resources to find a base in another package;'
            " pip install 'setuptools<81'"
        )
    place = f'config {failed}' + (f', line {line}' if line else '')
    return ConfigError(f'{place} cannot be read: {_one_line(error)}')


def _where(traceback: TracebackType | None, path: str) -> tuple[list[str], int | None]:
    """The config files that mmengine was reading, from ``path`` to the innermost base, and the line in that which was
    running."""
    files, line = [path], None
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code.co_name in ('_file2dict', '_is_lazy_import', '_parse_lazy_import'):
            files.append(frame.f_locals.get('filename', path))
            line = None
        elif frame.f_code.co_filename == files[-1]:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return files, line


def _one_line(error: BaseException) -> str:
    """Kind and text of an error in one line: a KeyError's text alone says too little."""
    return f'{type(error).__name__}: {" ".join(str(error).split())}'
