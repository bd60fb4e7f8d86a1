"""One model in every format that is there: size, accuracy, time and memory side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import BackendError, DeployError
from ..progress import Stages
from ..runtime.session import open_session
from .files import file_runner
from .measure import interleave
from .memory import peak_memory


@dataclass
class Row:
    """One format.

    Attributes:
        name: of the format.
        accuracy: metric to value, those that models are told apart by.
        median_ms: of one image.
        spread: half the distance of the quartiles, as a part of the median.
        ratio_to_pytorch: of the medians.
        mb: size of the file; None for PyTorch.
        peak_mb: that loading and running it adds to a process; None for PyTorch.
    """

    name: str
    accuracy: dict[str, float] = field(default_factory=dict)
    median_ms: float = 0.0
    spread: float = 0.0
    ratio_to_pytorch: float = 0.0
    mb: float | None = None
    peak_mb: float | None = None


@dataclass
class Formats:
    """What was measured.

    Attributes:
        rows: PyTorch first.
        images: of the test dataset; 0 where it was not measured on.
        not_measured: why there are no metrics.
        threads: of PyTorch and of each backend.
        runs: rounds, turn by turn.
        shape: (h, w) of the image that was timed, as the network gets it.
    """

    rows: list[Row] = field(default_factory=list)
    images: int = 0
    not_measured: str = ''
    threads: int = 1
    runs: int = 0
    shape: tuple[int, int] = (0, 0)

    def save(self, path: Path) -> None:
        """Write it as json."""
        path.write_text(json.dumps(asdict(self), indent=2) + '\n', encoding='utf-8')

    def cells(self) -> list[list[str]]:
        """A heading and a row for each format: name, MB, metrics, loss, median, / PyTorch, peak MB."""
        metrics = list(self.rows[0].accuracy)
        heading = ['format', 'MB', *metrics, *(['loss'] if metrics else []), 'median', '/ PyTorch', 'peak MB']
        table = [heading]
        for row in self.rows:
            values = [row.accuracy.get(name, float('nan')) for name in metrics]
            lost = [self.rows[0].accuracy[name] - value for name, value in zip(metrics, values, strict=True)]
            table.append(
                [
                    row.name,
                    '' if row.mb is None else f'{row.mb:.2f}',
                    *(f'{value:.4g}' for value in values),
                    *([f'{max(lost):.3g}' if row is not self.rows[0] else ''] if metrics else []),
                    f'{row.median_ms:.1f} ms',
                    f'{row.ratio_to_pytorch:.2f}',
                    '' if row.peak_mb is None else f'{row.peak_mb:.0f}',
                ]
            )
        return table


def files_of(path: Path) -> dict[str, tuple[Path, str]]:
    """Formats that can be made of an exported file and those beside it: name to (file, backend)."""
    lowered = {name: path.with_name(f'{path.stem}.{name}.onnx') for name in ('fp16', 'int8')}
    refused = {f'{name}, refused': file.with_suffix('.refused.onnx') for name, file in lowered.items()}
    files = {'float32': path} | {name: file for name, file in (lowered | refused).items() if file.is_file()}
    found = {f'ONNX Runtime {name}': (file, 'onnxruntime') for name, file in files.items()}
    try:
        from ..runtime.openvino_session import import_openvino

        import_openvino()
    except BackendError:
        return found
    return found | {f'OpenVINO {name}': (file, 'openvino') for name, file in files.items()}


def compare_formats(
    cfg: Any, task: Any, sample: Any, path: Path, threads: int = 1, runs: int = 20, stages: Stages | None = None
) -> Formats:
    """Measure PyTorch, an exported file, and the less exact ones beside it, each with every backend that is there.

    Args:
        cfg: the model config, whose test dataset the accuracy is measured on.
        task: with the model.
        sample: the image that is timed.
        path: the exact file; ``<name>.fp16.onnx`` and ``<name>.int8.onnx`` beside it are measured, too.
        threads: of PyTorch and of each backend.
        runs: rounds.
        stages: shows and times the work.

    Raises:
        DeployError: a file cannot be loaded, or does not take the image.
    """
    import torch

    stages = stages or Stages()
    torch.set_num_threads(threads)
    files = files_of(path)
    feeds = task.feeds([sample] * task.batch_size)
    sides: dict[str, Callable[[], object]] = {'PyTorch': lambda: task.test_step(sample)}
    for name, (file, kind) in files.items():
        sides[name] = file_runner(file, feeds, threads, kind)
    result = Formats(threads=threads, runs=runs, shape=sample.shape)
    with stages.stage('time', total=runs + 2) as step:
        timings = interleave(sides, runs, step=step)
    for timing in timings:
        row = Row(timing.name, {}, round(timing.median * 1e3, 2), round(timing.spread, 3))
        row.ratio_to_pytorch = round(timing.median / timings[0].median, 3)
        if timing.name in files:
            file, kind = files[timing.name]
            row.mb = round(_bytes(file) / 1e6, 3)
            row.peak_mb = peak_memory(file, feeds, threads, kind)
        result.rows.append(row)
    sessions = {name: open_session(file, threads=threads, backend=kind) for name, (file, kind) in files.items()}
    try:
        for name, metrics in _metrics(cfg, task, sessions, stages, result):
            next(row for row in result.rows if row.name == name).accuracy = metrics
    except (DeployError, OSError) as error:
        result.not_measured = str(error).splitlines()[0]
        for row in result.rows:
            row.accuracy = {}
    return result


def _metrics(cfg: Any, task: Any, sessions: Mapping[str, Any], stages: Stages, result: Formats) -> Any:
    """Name and metrics of each side; PyTorch runs with the first file."""
    from ..evaluation import evaluate, for_file
    from ..precision.report import main_metrics

    for number, (name, session) in enumerate(sessions.items()):
        found = evaluate(cfg, for_file(task, session), session, not number, stages, name)
        result.images = found.images
        for side, metrics in (('PyTorch', found.pytorch), (name, found.file)):
            if metrics:
                yield side, {metric: metrics[metric] for metric in main_metrics(metrics)}


def _bytes(path: Path) -> int:
    from ..export.large import data_files

    return sum(file.stat().st_size for file in [path, *data_files(path)])
