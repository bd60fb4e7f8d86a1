"""``python -m mmdeploy_lite.runtime model.onnx IMAGES... --out DIR``."""

import sys

from mmdeploy_lite.cli import run_command

if __name__ == '__main__':
    sys.exit(run_command('infer'))
