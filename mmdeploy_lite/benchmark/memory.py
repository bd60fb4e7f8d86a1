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
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = file_runner(Path(path), feeds, int(threads))
    for _ in range(2):
        run()
    unit = 1 if sys.platform == 'darwin' else 1024  # ru_maxrss is bytes there, kilobytes elsewhere
    print(round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit / 1e6, 1))


if __name__ == '__main__':
    main()
