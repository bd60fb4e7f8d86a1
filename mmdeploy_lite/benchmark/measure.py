"""Timing what is to be compared turn by turn, so that whatever else the machine does falls on all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Timing:
    """The runs of one side.

    Attributes:
        name: of the side.
        seconds: of each run, in order, without the warm-up.
    """

    name: str
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Seconds."""
        return float(np.median(self.seconds))

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles, as a part of the median."""
        low, high = np.percentile(self.seconds, [25, 75])
        return float((high - low) / 2 / self.median)


def interleave(
    sides: Mapping[str, Callable[[], object]],
    runs: int,
    warmup: int = 2,
    step: Callable[[], None] = lambda: None,
) -> list[Timing]:
    """Run every side once per round.

    Args:
        sides: what to run, by name.
        runs: rounds that count.
        warmup: rounds before that do not.
        step: called after each round, for a progress display.

    Returns:
        One timing per side, in their order.
    """
    timings = [Timing(name) for name in sides]
    for turn in range(warmup + runs):
        for timing, run in zip(timings, sides.values(), strict=True):
            start = time.perf_counter()
            run()
            if turn >= warmup:
                timing.seconds.append(time.perf_counter() - start)
        step()
    return timings
