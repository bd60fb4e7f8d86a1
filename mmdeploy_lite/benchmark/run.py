"""One model: PyTorch, its exported file, the bare network, other files, side by side."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from rich import box
from rich.table import Table
from rich.text import Text

from ..errors import UnsupportedError
from ..export.graphs import all_nodes
from ..export.large import save
from ..export.optimize import optimize, speed_up
from ..export.peepholes import UNFOLDED, convolved_before
from ..export.preprocess import InGraphPreprocess
from ..export.torchscript import TorchScriptExporter
from ..export.tracing import ExportState, exporting
from ..registry import REWRITERS
from ..rewriting import RewriteContext, build_rewriters, of_exporter
from ..runtime.session import read_metadata
from ..tasks import BaseTask, Sample
from .bare import BareNetwork
from .files import check_files, file_runner
from .measure import Timing, interleave
from .memory import peak_memory
from .parts import network_part

_NARROW = 100
"""Below so many columns, headings wrap and numbers are a space apart."""


@dataclass
class Benchmark:
    """What was measured.

    Attributes:
        model: name of the config.
        shape: (h, w) of the image as the network gets it.
        threads: of PyTorch and of ONNX Runtime.
        runs: rounds.
        rows: per side: ``name``, ``median_ms``, ``spread``, ``ratio_to_bare``, ``ratio_to_pytorch``, and of files
            ``mb``, ``nodes``, ``load_ms``, ``peak_mb``.
        post_share: part of the exported file's time that comes after its last operators with weights.
    """

    model: str
    shape: tuple[int, int]
    threads: int
    runs: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    post_share: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain json types."""
        return {**dataclasses.asdict(self), 'shape': list(self.shape)}

    def save(self, path: Path) -> None:
        """Write it as json."""
        path.write_text(json.dumps(self.to_dict(), indent=2) + '\n', encoding='utf-8')


def benchmark(
    name: str,
    task: BaseTask,
    sample: Sample,
    path: Path,
    rewriters: Mapping[str, dict],
    threads: int = 2,
    runs: int = 20,
    peers: Sequence[Path] = (),
    step: Callable[[], None] = lambda: None,
) -> Benchmark:
    """Measure one model.

    Args:
        name: of the model.
        task: with the model.
        sample: the image.
        path: the exported file.
        rewriters: the configs it was exported with; the bare network is exported with them too.
        threads: of PyTorch and of ONNX Runtime.
        runs: rounds.
        peers: other ONNX files. What has no input ``image`` is given the normalised tensor of the network, as other
            exporters make it; normalising is then not part of its time.
        step: called after each round.

    Raises:
        BackendError: see :func:`check_files`.
    """
    feeds = task.feeds([sample])
    check_files(path, feeds, peers)
    torch.set_num_threads(threads)
    normalised = {'image': task.preprocessed([sample]).numpy()}
    with tempfile.TemporaryDirectory() as folder:
        network = Path(folder, 'network.onnx')
        exported = onnx.load(str(path))
        save(network_part(exported), network)
        faster = read_metadata({entry.key: entry.value for entry in exported.metadata_props}).get('winograd', False)
        files = {'exported file': path, **export_bare(task, sample, Path(folder), rewriters, faster)}
        given = dict.fromkeys(files, feeds)
        given |= {f'peer {peer.name}': feeds if _takes_image(peer) else normalised for peer in peers}
        files |= {f'peer {peer.name}': peer for peer in peers}
        sides: dict[str, Callable[[], object]] = {'PyTorch': lambda: task.test_step(sample)}
        with contextlib.suppress(RuntimeError):
            sides['PyTorch channels_last, inference_mode'] = _channels_last(task, sample)
        for title, file in files.items():
            sides[title] = file_runner(file, given[title], threads)
        sides[_NETWORK] = file_runner(network, feeds, threads)
        timings = {timing.name: timing for timing in interleave(sides, runs, step=step)}
        result = Benchmark(name, sample.shape, threads, runs)
        without = timings.pop(_NETWORK)
        result.post_share = round(max(1 - without.median / timings['exported file'].median, 0.0), 3)
        for title, timing in timings.items():
            row = _row(timing, timings['bare network'], timings['PyTorch'])
            if title in files:
                row.update(_facts(files[title], given[title], threads))
            result.rows.append(row)
    return result


def _takes_image(file: Path) -> bool:
    graph = onnx.load(str(file), load_external_data=False).graph
    return any(value.name == 'image' for value in graph.input)


_NETWORK = 'exported file without post-processing'


def _row(timing: Timing, limit: Timing, eager: Timing) -> dict[str, Any]:
    return dict(
        name=timing.name,
        median_ms=round(timing.median * 1e3, 2),
        spread=round(timing.spread, 3),
        ratio_to_bare=round(timing.median / limit.median, 3),
        ratio_to_pytorch=round(timing.median / eager.median, 3),
    )


def _facts(file: Path, feeds: Mapping[str, np.ndarray], threads: int) -> dict[str, Any]:
    nodes = all_nodes(onnx.load(str(file), load_external_data=False).graph)
    (loading,) = interleave({'': lambda: file_runner(file, feeds, threads)}, runs=3, warmup=0)
    return dict(
        mb=round(file.stat().st_size / 1e6, 2),
        nodes=sum(1 for _ in nodes),
        load_ms=round(loading.median * 1e3, 1),
        peak_mb=peak_memory(file, feeds, threads),
    )


def export_bare(
    task: BaseTask, sample: Sample, folder: Path, rewriters: Mapping[str, dict], winograd: bool = False
) -> dict[str, Path]:
    """Export the bare network at the size of ``sample``.

    Args:
        task: with the model.
        sample: the image.
        folder: where the files go.
        rewriters: the configs to export with.
        winograd: its convolutions by Winograd's algorithm, where that is less work.

    Returns:
        Files in ``folder``, by what they are: the network, and where its convolutions are computed in another way or
        another place, the network as it is written.

    Raises:
        UnsupportedError: the model has no head that can be run by itself.
    """
    wrapper = BareNetwork(task.model, InGraphPreprocess(task.preprocess_spec), task.rescale).eval()
    image = torch.from_numpy(task.feeds([sample])['image'])
    taken = of_exporter(build_rewriters(rewriters, REWRITERS), TorchScriptExporter.symbolic)
    for rewriter in taken.values():
        rewriter.prepare(task.model)
    with RewriteContext(taken), exporting(ExportState()), torch.no_grad():
        try:
            count = len(wrapper(image))
        except (AttributeError, TypeError) as error:
            raise UnsupportedError(
                f'{type(task.model).__name__} has no bare network to compare with: {error}'
            ) from error
        graph = TorchScriptExporter().export(wrapper, [image], ['image'], [f'raw_{i}' for i in range(count)], {})
    found = {'bare network': optimize(graph.model)}
    if winograd:
        found['bare network'] = speed_up(found['bare network'])
    as_written = optimize(graph.model, unfolded=[rule for rule in UNFOLDED if rule is not convolved_before])
    if as_written != found['bare network']:
        found['bare network as written'] = as_written
    paths = {title: folder / f'{title.replace(" ", "_")}.onnx' for title in found}
    for title, model in found.items():
        onnx.save(model, str(paths[title]))
    return paths


def _channels_last(task: BaseTask, sample: Sample) -> Callable[[], object]:
    import copy

    other = copy.copy(task)
    other.model = copy.deepcopy(task.model).to(memory_format=torch.channels_last)

    def run() -> object:
        with torch.inference_mode():
            return other.test_step(sample)

    run()
    return run


def table(result: Benchmark, width: int = 120) -> Table:
    """The table for a terminal of ``width`` columns. No number is cut: names wrap, and headings where it is narrow."""
    narrow = width < _NARROW
    height, length = result.shape
    title = f'{result.model}, {height} x {length}, {result.threads} threads, medians of {result.runs} runs'
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=0 if narrow else (0, 1), pad_edge=False)
    table.add_column('', overflow='fold')
    for name in ('median', 'spread', '/ bare', '/ PyTorch', 'MB', 'nodes', 'load ms', 'peak MB'):
        table.add_column(name.replace(' ', '\n') if narrow else name, justify='right', no_wrap=True)
    for row in result.rows:
        table.add_row(
            Text(row['name']),
            f'{row["median_ms"]:.1f} ms',
            f'±{row["spread"]:.0%}',
            f'{row["ratio_to_bare"]:.2f}',
            f'{row["ratio_to_pytorch"]:.2f}',
            *(str(row.get(key, '')) for key in ('mb', 'nodes', 'load_ms', 'peak_mb')),
        )
    return table
