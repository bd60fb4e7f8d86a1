"""One fixture of the faults, deployed once."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmdeploy_lite.testing.trust.bench import Bench
from mmdeploy_lite.testing.trust.fixtures import fixture

DEMO = Path(__file__).parents[2] / 'demo'


@pytest.fixture(scope='module')
def bench(tmp_path_factory) -> Bench:
    folder = tmp_path_factory.mktemp('bench')
    return Bench(fixture('RetinaNet', folder / 'model', DEMO), folder)
