"""Stages of a long command: timed, and shown while they run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text


class _Mark(SpinnerColumn):
    """A cross where a stage failed."""

    def render(self, task: Task) -> RenderableType:
        return Text('✗', style='red') if task.fields.get('failed') else super().render(task)


class Stages:
    """Times stages; shows each in a terminal, where a console is given.

    Args:
        console: to show progress on; None shows nothing.

    Attributes:
        times: seconds per stage, in the order they began. A stage that runs twice adds up.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.times: dict[str, float] = {}
        self._progress = None
        if console is not None:
            self._progress = Progress(
                _Mark(finished_text='✓'),
                TextColumn('{task.description:<12}'),
                BarColumn(bar_width=24),
                TimeElapsedColumn(),
                TextColumn('{task.fields[note]}'),
                console=console,
            )

    def __enter__(self) -> Stages:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    @contextlib.contextmanager
    def stage(self, name: str, total: int | None = None, note: str = '') -> Iterator[Callable[[], None]]:
        """Time what runs inside.

        Args:
            name: of the stage.
            total: number of steps; None for a stage without steps.
            note: shown behind the time.

        Yields:
            To be called after each step.
        """
        task: TaskID | None = None
        if self._progress is not None:
            task = self._progress.add_task(name, total=total, note=note)

        def step() -> None:
            if task is not None:
                self._progress.advance(task)

        start = time.perf_counter()
        try:
            yield step
        except BaseException:
            if task is not None:
                self._progress.update(task, failed=True)
            raise
        finally:
            self.times[name] = self.times.get(name, 0.0) + time.perf_counter() - start
        if task is not None:
            self._progress.update(task, total=total or 1, completed=total or 1)
