"""What a stage looks like when it is over, also where nothing moves."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from rich.console import Console

from mmdeploy_lite.progress import Stages


def test_a_stage_that_is_done_and_one_that_failed():
    out = io.StringIO()
    with pytest.raises(ValueError), Stages(Console(file=out, width=80)) as stages:
        with stages.stage('load'):
            pass
        with stages.stage('export', total=3) as step:
            step()
            raise ValueError
    done, failed = out.getvalue().splitlines()
    assert done.startswith('✓ load') and failed.startswith('✗ export')
    assert stages.times.keys() == {'load', 'export'}


def test_what_libraries_warn_of_is_not_shown():
    """As torch 2.5 warns when mmengine's optimizers are imported. In its own process: pytest catches warnings too."""
    code = """
import warnings
from mmdeploy_lite.cli import quiet_libraries
def warn():
    with warnings.catch_warnings():
        warnings.simplefilter('always')
        warnings.warn('a deprecated optimizer', DeprecationWarning)
with quiet_libraries():
    warn()
print('shown after it:')
warn()
"""
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ['shown', 'after', 'it:'] and done.stderr.count('a deprecated optimizer') == 1
