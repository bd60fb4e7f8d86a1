"""Where the results go: nothing half-written, whatever happens."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
from mmengine.config import Config

from .errors import DISK_ERRORS, WorkDirError
from .export.large import data_files, drop_unused_data, is_large, save
from .runtime.seal import file_digest, seal

try:
    import fcntl
except ImportError:  # Windows: leftovers of killed runs stay, and two runs at once may mix
    fcntl = None


def open_work_dir(work_dir: str | Path | None, cfg: Config) -> Path:
    """Make the work dir: the one given, or ``work_dirs/<config name>``.

    Raises:
        WorkDirError: it cannot be made or written.
    """
    folder = Path(work_dir) if work_dir is not None else Path('work_dirs', Path(cfg.filename).stem)
    with _as_work_dir_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    return folder


class Staging:
    """A folder of one run's own inside the work dir, where everything is made that ends up there.

    So whatever happens, the work dir's files are those of one run, each whole; two runs at once do not mix: the one
    that ends last wins. What a killed run left behind is removed by the next one.

    Args:
        folder: the work dir.

    Attributes:
        folder: of this run; there from enter to exit.
    """

    def __init__(self, folder: Path) -> None:
        self.work_dir = folder
        self.folder = folder
        self._lock: int | None = None

    def __enter__(self) -> Staging:
        with _locked(self.work_dir):
            _remove_leftovers(self.work_dir)
            with _as_work_dir_error(self.work_dir):
                self.folder = Path(tempfile.mkdtemp(dir=self.work_dir, prefix=_STAGING))
            # held as long as this process lives, and no longer
            self._lock = _lock(self.folder, wait=False)
        return self

    def __exit__(self, *exc_info: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        _unlock(self._lock)

    def publish(self, last: str, obsolete: Sequence[str] = ()) -> None:
        """Rename all files to the work dir, at once for every other run.

        Args:
            last: the name of the file that the others are about: it comes after them.
            obsolete: names in the work dir that then no longer belong there.

        Raises:
            WorkDirError: one cannot be renamed.
        """
        with _locked(self.work_dir):
            for source in sorted(self.folder.iterdir(), key=lambda path: path.name == last):
                put_in_place(source, self.work_dir / source.name)
            for name in obsolete:
                self.work_dir.joinpath(name).unlink(missing_ok=True)
            drop_unused_data(self.work_dir)


_STAGING = '.deploy.'


def _remove_leftovers(folder: Path) -> None:
    """Delete what runs that were killed left behind: nobody holds the lock of such a folder."""
    for path in folder.glob(f'{_STAGING}*'):
        if fcntl is None or (lock := _lock(path, wait=False)) is None:
            continue
        shutil.rmtree(path, ignore_errors=True)
        _unlock(lock)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock = _lock(folder, wait=True)
    try:
        yield
    finally:
        _unlock(lock)


def _lock(folder: Path, wait: bool) -> int | None:
    """Lock a folder, without a file in it; None where it is locked, or the file system has no locks."""
    if fcntl is None:
        return None
    try:
        number = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(number, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(number)
        return None
    return number


def _unlock(number: int | None) -> None:
    if number is not None:
        os.close(number)


@contextlib.contextmanager
def _as_work_dir_error(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WorkDirError(
            f'the work dir {folder} cannot be written: {error.strerror}; choose another with --work-dir'
        ) from error


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """Whatever is written inside, also by the libraries and to the folder for temporary files.

    Raises:
        WorkDirError: a disk is full, or can only be read.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        where = error.filename or f'a file, perhaps in {tempfile.gettempdir()}'
        raise WorkDirError(
            f'{where} cannot be written: {error.strerror}; make room, or choose another place with --work-dir (and'
            ' TMPDIR for temporary files)'
        ) from error


def save_model(model: onnx.ModelProto, path: Path, external: bool = False) -> None:
    """Write a graph, see :func:`mmdeploy_lite.export.large.save`, and seal it.

    Raises:
        WorkDirError: it cannot be written.
    """
    try:
        save(model, path, external)
        beside = data_files(path) if external or is_large(model) else []
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
