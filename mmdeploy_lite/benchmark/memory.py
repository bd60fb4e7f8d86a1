"""Peak memory of one file, in a process of its own.

``python -m mmdeploy_lite.benchmark.memory FILE FEEDS.npz THREADS BACKEND`` prints it.
"""

from __future__ import annotations

import importlib
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..errors import BackendError
from .files import file_runner


def peak_memory(path: Path, feeds: Mapping[str, np.ndarray], threads: int, backend: str = 'onnxruntime') -> float:
    """MB that loading a file and running it twice adds to the peak of a process that has imported the backend.

    Raises:
        BackendError: it cannot be run.
    """
    with tempfile.TemporaryDirectory() as folder:
        arrays = Path(folder, 'feeds.npz')
        np.savez(arrays, **feeds)
        command = [sys.executable, '-m', __name__, str(path), str(arrays), str(threads), backend]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BackendError(f'{path} could not be run by itself: {done.stderr.strip().splitlines()[-1]}')
    return float(done.stdout)


def main() -> None:
    """Print the MB of one file."""
    path, arrays, threads, backend = sys.argv[1:]
    feeds = dict(np.load(arrays))
    importlib.import_module(backend)
    before = peak_bytes()
    run = file_runner(Path(path), feeds, int(threads), backend)
    for _ in range(2):
        run()
    print(round((peak_bytes() - before) / 1e6, 1))


def peak_bytes() -> int:
    """The most memory that this process has had."""
    status = Path('/proc/self/status')
    if status.is_file():  # on Linux, ru_maxrss begins with the peak of the process that started this one
        line = next(line for line in status.read_text().splitlines() if line.startswith('VmHWM:'))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == 'darwin' else peak * 1024  # bytes there, kilobytes elsewhere


if __name__ == '__main__':
    main()
