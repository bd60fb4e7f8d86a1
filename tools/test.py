"""Measure a file and PyTorch on the config's own test dataset: tools/test.py CONFIG CHECKPOINT FILE"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a source tree that is not installed

from mmdeploy_lite.cli import run_command

if __name__ == '__main__':
    sys.exit(run_command('test'))
