"""The table that a user reads."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from mmdeploy_lite.benchmark.run import Benchmark, table

ROWS = [
    dict(name='PyTorch channels_last, inference_mode', median_ms=20611.54, spread=0.62),
    dict(name='exported file', median_ms=12345.6, spread=0.42, mb=1234.56, nodes=12345, load_ms=1407.8, peak_mb=1131.1),
    dict(name='peer [a] of_a_long_name-without-a-space-in-it.onnx', median_ms=23.77, spread=0.38, mb=4.97),
]


@pytest.mark.parametrize('width', [80, 100, 160])
def test_no_number_is_cut(width):
    rows = [dict(row, ratio_to_bare=25.72, ratio_to_pytorch=10.75) for row in ROWS]
    console = Console(file=io.StringIO(), width=width)
    console.print(table(Benchmark('detector', (224, 320), 2, 20, rows), console.width))
    text = console.file.getvalue()
    assert '…' not in text and max(map(len, text.splitlines())) <= width
    for value in ('20611.5 ms', '±62%', '25.72', '10.75', '1234.56', '12345', '1407.8', '1131.1', '4.97', '224 x 320'):
        assert value in text
    assert '[a]' in text  # a file's name is no markup
