"""Where the results go: nothing half-written, whatever happens."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
from mmengine.config import Config

from .errors import WorkDirError
from .runtime.seal import file_digest, seal


def open_work_dir(work_dir: str | Path | None, cfg: Config) -> Path:
    """Make the work dir: the one given, or ``work_dirs/<config name>``.

    Raises:
        WorkDirError: it cannot be made or written.
    """
    folder = Path(work_dir) if work_dir is not None else Path('work_dirs', Path(cfg.filename).stem)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f'.writable.{os.getpid()}'
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise WorkDirError(
            f'the work dir {folder} cannot be written: {error.strerror}; choose another with --work-dir'
        ) from error
    return folder


class TemporaryFile:
    """A name for the file while it is not known to be equal; gone afterwards, whatever happens."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f'.model.{os.getpid()}.onnx'

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *exc_info: object) -> None:
        from .export.large import drop_unused_data

        self.path.unlink(missing_ok=True)
        drop_unused_data(self.path.parent)


def save_model(model: onnx.ModelProto, path: Path, external: bool = False) -> None:
    """Write a graph, see :func:`mmdeploy_lite.export.large.save`, and seal it.

    Raises:
        WorkDirError: it cannot be written.
    """
    from .export.large import data_files, save

    try:
        save(model, path, external)
        beside = data_files(path)
        seal(path, {file.name: file_digest(file) for file in beside} if beside else None)
    except OSError as error:
        raise WorkDirError(f'{path} cannot be written: {error.strerror}') from error


def put_in_place(source: Path, target: Path) -> None:
    """Rename a finished file to its name; whoever reads the name sees the old file or the new one, whole.

    Raises:
        WorkDirError: it cannot be renamed.
    """
    try:
        os.replace(source, target)
    except OSError as error:
        raise WorkDirError(f'{target} cannot be written: {error.strerror}') from error
