"""Time and memory as the work grows: with the batch, the windows of slide inference, the detections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .files import file_runner
from .measure import interleave
from .memory import peak_memory


@dataclass
class Growth:
    """One curve.

    Attributes:
        title: the model and its size.
        unit: what the work is counted in.
        per: 'image' where ``median_ms`` is divided by the amount, else 'run'.
        threads: of ONNX Runtime.
        rows: ``amount``, ``median_ms`` and ``peak_mb``, by amount.
    """

    title: str
    unit: str
    per: str
    threads: int
    rows: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain json types."""
        return asdict(self)


def measure_growth(
    title: str,
    unit: str,
    steps: Sequence[tuple[int, Path, dict[str, np.ndarray]]],
    threads: int,
    runs: int,
    per_image: bool = False,
) -> Growth:
    """Time files turn by turn, each with its own amount of work.

    Args:
        title: the model and its size.
        unit: what the work is counted in.
        steps: per amount: the file, and what it is given.
        threads: of ONNX Runtime.
        runs: rounds that count.
        per_image: divide the time by the amount.
    """
    sides = {str(amount): file_runner(path, feeds, threads) for amount, path, feeds in steps}
    timings = interleave(sides, runs, warmup=1)
    growth = Growth(title, unit, 'image' if per_image else 'run', threads)
    for (amount, path, feeds), timing in zip(steps, timings, strict=True):
        median = timing.median * 1e3 / (amount if per_image else 1)
        growth.rows.append(dict(amount=amount, median_ms=round(median, 2), peak_mb=peak_memory(path, feeds, threads)))
    return growth


def plot_growth(growths: Sequence[dict[str, Any]], path: Path) -> None:
    """One panel per curve, time left and memory right; a PNG, no display needed.

    Args:
        growths: of :meth:`Growth.to_dict`.
        path: to write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(growths), 3.4), layout='constrained')
    FigureCanvasAgg(figure)
    for axes, growth in zip(np.atleast_1d(figure.subplots(1, len(growths))), growths, strict=True):
        amounts = [row['amount'] for row in growth['rows']]
        axes.plot(amounts, [row['median_ms'] for row in growth['rows']], 'o-', color='#4c72b0')
        axes.set_xlabel(growth['unit'])
        axes.set_ylabel(f'milliseconds per {growth["per"]}', color='#4c72b0')
        axes.set_ylim(bottom=0)
        axes.set_title(growth['title'], fontsize=10)
        memory = axes.twinx()
        memory.plot(amounts, [row['peak_mb'] for row in growth['rows']], 's--', color='#c44e52')
        memory.set_ylabel('peak MB', color='#c44e52')
        memory.set_ylim(bottom=0)
    figure.savefig(path, dpi=110)
