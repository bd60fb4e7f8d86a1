from __future__ import annotations

import pytest

from mmdeploy_lite.check import Tolerance
from mmdeploy_lite.errors import ConfigError


def test_defaults_are_the_table() -> None:
    assert Tolerance.from_config(None) == Tolerance.from_config({}) == Tolerance()
    assert Tolerance().to_dict() == dict(
        score=1e-4, box_px=0.05, box_rel=1e-4, mask=1e-4, tensor_rel=1e-4, undecidable_share=0.05
    )


@pytest.mark.parametrize(('size', 'expected'), [((100, 200), 0.05), ((500, 400), 0.05), ((600, 2000), 0.2)])
def test_box_tolerance_grows_with_the_longer_side(size: tuple[int, int], expected: float) -> None:
    assert Tolerance().box(size) == pytest.approx(expected)


def test_only_what_is_larger_is_loosened() -> None:
    assert Tolerance().loosened() == []
    assert Tolerance(score=5e-5, mask=1e-4).loosened() == []
    assert Tolerance.from_config(dict(score=1e-3, box_px=0.5)).loosened() == [
        'score 0.001 (default 0.0001)',
        'box_px 0.5 (default 0.05)',
    ]


def test_unknown_key_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="unknown tolerance 'scores': known are score, box_px"):
        Tolerance.from_config(dict(scores=1e-3))


@pytest.mark.parametrize('value', [-1e-4, float('nan'), float('inf'), '1e-4', True, None])
def test_values_are_numbers(value: object) -> None:
    with pytest.raises(ConfigError, match="tolerance 'score' must be a number"):
        Tolerance.from_config(dict(score=value))
