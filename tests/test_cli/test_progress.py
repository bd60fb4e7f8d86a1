"""What a stage looks like when it is over, also where nothing moves."""

from __future__ import annotations

import io

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
