"""A venv with only ``[runtime]``: nothing else is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from .conftest import write_image

ROOT = Path(__file__).resolve().parents[2]
BLOCK = """
import sys

class Only:
    def find_spec(self, name, path=None, target=None):
        top = name.partition('.')[0]
        if top not in sys.stdlib_module_names | {'numpy', 'cv2', 'onnxruntime', 'mmdeploy_lite'} | FOR_THEM:
            raise ModuleNotFoundError(f'No module named {name!r}', name=name)

# what onnxruntime imports where it finds it, and what Python's start itself does
FOR_THEM = {'coloredlogs', 'humanfriendly', 'sitecustomize', 'usercustomize', 'google', 'flatbuffers', 'packaging'}
sys.meta_path.insert(0, Only())
"""


def python(code: str, *args: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, '-c', BLOCK + code, *map(str, args)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


def test_the_command_line_runs_without_torch_and_mmengine(make_file, tmp_path):
    image = write_image(tmp_path / 'x.png', np.full((60, 50, 3), 2, np.uint8))
    code = "from mmdeploy_lite.cli import run_command\nsys.exit(run_command('infer'))"
    done = python(code, make_file(), image, '--out', tmp_path / 'out', '--threads', 1)
    assert done.returncode == 0, done.stderr
    assert len(json.loads((tmp_path / 'out' / 'results.json').read_text(encoding='utf-8'))['results']) == 2
    assert done.stderr.startswith('[1/1] x.png: 2 objects') and done.stderr.count('\n') == 1


def test_what_importing_the_runtime_loads():
    code = 'import numpy, cv2\nbefore = set(sys.modules)\nimport mmdeploy_lite.runtime\n'
    done = python(code + 'print(*sorted(set(sys.modules) - before))')
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split()
    ours = {name for name in loaded if name.startswith('mmdeploy_lite')}
    assert ours == {'mmdeploy_lite', 'mmdeploy_lite.errors', 'mmdeploy_lite.runtime'} | {
        f'mmdeploy_lite.runtime.{name}'
        for name in (
            'image',
            'masks',
            'metadata',
            'model',
            'pipeline',
            'prepared',
            'preprocess',
            'results',
            'seal',
            'session',
        )
    }
    assert {name.partition('.')[0] for name in loaded} - sys.stdlib_module_names == {'mmdeploy_lite'}
    assert len(loaded) < 60


def test_the_tool_and_the_module_are_the_command(make_file, tmp_path):
    for command in (['tools/infer.py'], ['-m', 'mmdeploy_lite.runtime']):
        done = subprocess.run(
            [sys.executable, *command, str(make_file()), str(tmp_path / 'gone.png')],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 2
        assert done.stderr == f'error: image {tmp_path / "gone.png"} does not exist\n'
