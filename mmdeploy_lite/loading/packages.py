"""Configs named by the package that ships them: ``mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py``.

mmengine resolves such names in ``_base_``, but only for a fixed table of packages, in which this project cannot be,
and only for a regular install, since it looks beside the package's metadata. Importing this module lets mmengine's
lookup also find configs by where the package is imported from. A name that is not found so goes mmengine's own way.
"""

from __future__ import annotations

import difflib
import importlib.util
from pathlib import Path

from mmengine.config import Config

from ..errors import ConfigError

OWN_PACKAGE = __name__.partition('.')[0]


def config_folder(package: str) -> Path | None:
    """The folder with the configs that an importable package ships, or None when there is none.

    An install keeps them in ``<package>/.mim/configs``; this project's own source tree in ``configs``, beside the
    package.
    """
    if not package.isidentifier():
        return None
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a module that is running as a script
        return None
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    folders = [root / '.mim' / 'configs']
    if package == OWN_PACKAGE:
        folders.append(root.parent / 'configs')
    return next((folder for folder in folders if folder.is_dir()), None)


def find_package_config(name: str) -> Path | None:
    """The file behind ``package::relative/path``, with or without ``.py``, or None when there is no such file."""
    package, _, relative = name.partition('::')
    folder = config_folder(package)
    if folder is None:
        return None
    candidates = (folder / relative, folder / f'{relative}.py')
    return next((path for path in candidates if path.is_file()), None)


def unknown_package_config(name: str) -> ConfigError:
    """The error for a ``package::relative/path`` that does not exist; names the closest ones that do."""
    package, _, relative = name.partition('::')
    folder = config_folder(package)
    if folder is None:
        return ConfigError(
            f"config '{name}': no installed package '{package}' ships configs; install it, or give the path of a file"
        )
    known = sorted(path.relative_to(folder).as_posix() for path in folder.rglob('*.py'))
    by_name = {Path(path).name: path for path in known}
    close = difflib.get_close_matches(relative, known, n=3) or [
        by_name[match] for match in difflib.get_close_matches(Path(relative).name, by_name, n=3)
    ]
    hint = f'did you mean {", ".join(f"{package}::{path}" for path in close)}?' if close else f'see {folder}'
    return ConfigError(f"config '{name}': {package} ships no such config; {hint}")


def _extend_mmengine() -> None:
    original = Config._get_cfg_path

    def get_cfg_path(cfg_path: str, filename: str) -> tuple[str, str | None]:
        package, separator, _ = cfg_path.partition('::')
        if not separator:
            return original(cfg_path, filename)
        path = find_package_config(cfg_path)
        if path is not None:
            # The scope tells mmengine in which library's registry to look types up; those of this project need none.
            return str(path), None if package == OWN_PACKAGE else package
        if package == OWN_PACKAGE:
            raise unknown_package_config(cfg_path)
        return original(cfg_path, filename)

    Config._get_cfg_path = staticmethod(get_cfg_path)


_extend_mmengine()
