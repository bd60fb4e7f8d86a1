"""Timing what is to be compared turn by turn, so that whatever else the machine does falls on all alike."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

REST = 0.03
"""Seconds between two sides. The threads of PyTorch's OpenMP go on spinning for some milliseconds when its work is
done, on a core that the next side needs: the exported file of YOLOX-nano took 17 ms behind PyTorch, and 12 ms else.
"""


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
    """Run every side once per round, in another order each time: what ran before leaves its caches and threads behind.

    Args:
        sides: what to run, by name.
        runs: rounds that count.
        warmup: rounds before that do not.
        step: called after each round, for a progress display.

    Returns:
        One timing per side, in their order.
    """
    timings = {name: Timing(name) for name in sides}
    order, shuffle = list(sides), random.Random(0).shuffle
    for turn in range(warmup + runs):
        shuffle(order)
        for name in order:
            time.sleep(REST)
            start = time.perf_counter()
            sides[name]()
            if turn >= warmup:
                timings[name].seconds.append(time.perf_counter() - start)
        step()
    return list(timings.values())
