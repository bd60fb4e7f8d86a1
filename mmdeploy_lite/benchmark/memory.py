"""Peak memory of one file, in a process of its own: python -m mmdeploy_lite.benchmark.memory FILE FEEDS.npz THREADS"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import numpy as np

from .files import file_runner


def main() -> None:
    """Print the MB by which loading and running the file raised the process's peak."""
    path, arrays, threads = sys.argv[1:]
    feeds = dict(np.load(arrays))
    before = peak_bytes()
    run = file_runner(Path(path), feeds, int(threads))
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
