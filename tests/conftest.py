"""What every test starts from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Before torch is imported: test workers share the cores, and more threads than cores only slow them down.
os.environ.setdefault('OMP_NUM_THREADS', '1')


@pytest.fixture(scope='session')
def real_models() -> Path:
    """The folder with the real trained models; skips where it is absent."""
    folder = Path(__file__).resolve().parents[2] / 'shared' / 'models'
    if not folder.is_dir():
        pytest.skip(f'no real models in {folder}')
    return folder
