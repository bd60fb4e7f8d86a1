"""The measurements as a picture."""

from __future__ import annotations

from pathlib import Path

from .run import Benchmark


def plot(result: Benchmark, path: Path) -> None:
    """Horizontal bars of the medians, with the ratio to the bare network beside each; a PNG, no display needed.

    Args:
        result: to draw.
        path: to write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.6 * len(result.rows) + 1.2), layout='constrained')
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    names = [row['name'] for row in result.rows][::-1]
    medians = [row['median_ms'] for row in result.rows][::-1]
    errors = [row['spread'] * row['median_ms'] for row in result.rows][::-1]
    bars = axes.barh(names, medians, xerr=errors, color='#4c72b0', height=0.6)
    labels = [f'{row["median_ms"]:.1f} ms  (x{row["ratio_to_bare"]:.2f})' for row in result.rows][::-1]
    axes.bar_label(bars, labels, padding=6)
    axes.margins(x=0.25)
    axes.set_xlabel('milliseconds, median; in brackets the ratio to the bare network')
    axes.set_title(f'{result.model}, {result.shape[0]} x {result.shape[1]}, {result.threads} threads')
    axes.spines[['top', 'right']].set_visible(False)
    figure.savefig(path, dpi=120)
