"""Sides are timed turn by turn, and none is always behind the same other one."""

from __future__ import annotations

from mmdeploy_lite.benchmark import measure


def test_every_side_runs_once_a_round_in_changing_order(monkeypatch):
    monkeypatch.setattr(measure, 'REST', 0)
    ran, rounds = [], []
    sides = {name: (lambda name=name: ran.append(name)) for name in 'abcd'}

    timings = measure.interleave(sides, runs=30, warmup=3, step=lambda: rounds.append(len(ran)))

    assert [timing.name for timing in timings] == [*'abcd']
    assert all(len(timing.seconds) == 30 for timing in timings)
    assert rounds == [4 * turn for turn in range(1, 34)]
    turns = [ran[start : start + 4] for start in range(0, len(ran), 4)]
    assert all(sorted(turn) == [*'abcd'] for turn in turns)
    before = {(one, other) for one, other in zip(ran, ran[1:], strict=False) if one != other}
    assert len(before) == 12  # each behind each other
