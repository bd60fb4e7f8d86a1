"""The report of one deploy: a table for the terminal and plain json for everything else."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmdeploy_lite.check.comparison import Comparison
from mmdeploy_lite.check.tolerance import Tolerance
from mmdeploy_lite.errors import WorkDirError

if TYPE_CHECKING:
    from mmdeploy_lite.precision.report import PrecisionReport

FORMAT = 1
"""Version of the json layout."""

WORDING = {'equal': 'equal', 'unequal': 'not equal', 'undecidable': 'undecidable'}
_STYLE = {'equal': 'green', 'not equal': 'bold red', 'undecidable': 'yellow'}
_NARROW = 100
"""Below so many columns, size and output go under the image's name."""


@dataclass
class FileFacts:
    """What the exported file is.

    Attributes:
        path: Where it is.
        bytes: Its size, external data included.
        inputs: One dict per input: ``name``, ``dtype``, ``shape`` (numbers, or names of dynamic axes).
        outputs: The same of the outputs.
        opset: Version of the default operator domain.
        nodes: Number of nodes, subgraphs included.
        data: Names of the files beside it that hold its weights; they belong together.
    """

    path: str
    bytes: int
    inputs: list[dict[str, Any]] = field(default_factory=list)
    outputs: list[dict[str, Any]] = field(default_factory=list)
    opset: int = 0
    nodes: int = 0
    data: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain json types."""
        return dict(
            path=str(self.path),
            bytes=int(self.bytes),
            inputs=[_plain(item) for item in self.inputs],
            outputs=[_plain(item) for item in self.outputs],
            opset=int(self.opset),
            nodes=int(self.nodes),
            data=list(self.data),
        )


@dataclass
class Check:
    """One output of one image, compared.

    Attributes:
        image: Name of the image, as the user would recognise it.
        size: (h, w) of the original image in pixels.
        output: What was compared: ``'dets'``, ``'seg_map'``, ``'seg_logits'``, ...; ``'runtime'`` for what the runtime
            answers to the image file, compared with what the file answers to the library's pipeline.
        comparison: How it compares.
    """

    image: str
    size: tuple[int, int]
    output: str
    comparison: Comparison

    def to_dict(self) -> dict[str, Any]:
        """Plain json types; the verdict in the report's wording."""
        result = self.comparison.to_dict()
        result['verdict'] = WORDING[self.comparison.verdict]
        height, width = self.size
        return dict(image=str(self.image), size=[int(height), int(width)], output=self.output, **result)


@dataclass
class Report:
    """All that a deploy found out.

    Attributes:
        file: The exported file.
        checks: One entry per image and output.
        rewriters: Rewriter key to how often it fired at each call site.
        unfired: Keys of rewriters that never fired.
        stage_times: Stage to seconds, in order.
        versions: Library to version.
        tolerance: What counted as equal.
        not_exercised: What the images did not put to the test (:func:`mmdeploy_lite.check.coverage.exercised`).
        warnings: What the user should know.
        backend: Name of the backend.
        precision: Of the less exact file; None where none was asked for.
    """

    file: FileFacts
    checks: list[Check] = field(default_factory=list)
    rewriters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    unfired: list[str] = field(default_factory=list)
    stage_times: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    tolerance: Tolerance = field(default_factory=Tolerance)
    not_exercised: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    backend: str = 'onnxruntime'
    precision: PrecisionReport | None = None

    @property
    def verdict(self) -> str:
        """``'equal'``, ``'not equal'`` or ``'undecidable'``: the worst of all checks; undecidable without any."""
        verdicts = {check.comparison.verdict for check in self.checks}
        for verdict in ('unequal', 'undecidable', 'equal'):
            if verdict in verdicts:
                return WORDING[verdict]
        return WORDING['undecidable']

    @property
    def equal(self) -> bool:
        """Every check is equal, and there is one."""
        return self.verdict == 'equal'

    def to_dict(self) -> dict[str, Any]:
        """Plain json types, always the same keys in the same order."""
        return dict(
            format=FORMAT,
            equal=self.equal,
            verdict=self.verdict,
            summary=self.summary(),
            backend=self.backend,
            file=self.file.to_dict(),
            tolerance=self.tolerance.to_dict(),
            loosened=self.tolerance.loosened(),
            checks=[check.to_dict() for check in self.checks],
            not_exercised=[str(line) for line in self.not_exercised],
            warnings=[str(line) for line in self.warnings],
            rewriters={key: {site: int(n) for site, n in sites.items()} for key, sites in self.rewriters.items()},
            unfired=[str(key) for key in self.unfired],
            stage_times={stage: round(float(seconds), 4) for stage, seconds in self.stage_times.items()},
            versions={name: str(version) for name, version in self.versions.items()},
            precision=None if self.precision is None else self.precision.to_dict(),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as json (UTF-8), all of it or nothing.

        Raises:
            WorkDirError: The file cannot be written.
        """
        path = Path(path)
        text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + '\n'
        temporary = path.with_name(f'.{path.name}.{os.getpid()}.tmp')
        try:
            temporary.write_text(text, encoding='utf-8')
            os.replace(temporary, path)
        except OSError as error:
            raise WorkDirError(f'cannot write the report to {path}: {error.strerror or error}') from error
        finally:
            if temporary.exists():
                temporary.unlink()

    def summary(self) -> str:
        """The verdict in one line."""
        bad = [check for check in self.checks if WORDING[check.comparison.verdict] == self.verdict]
        images = len({check.image for check in self.checks})
        if not self.checks:
            return 'undecidable: no image was compared'
        if not self.equal:
            reasons = bad[0].comparison.reasons or ['no reason given']
            where = f'{len(bad)} of {_count(len(self.checks), "comparison")}'
            return f'{self.verdict}: {where}, the first is {bad[0].output} of {bad[0].image}: {reasons[0]}'
        parts = [_count(images, 'image')]
        # the runtime answers the same images once more
        files = [check for check in self.checks if check.output != 'runtime']
        found = [check.comparison for check in files if check.comparison.kind == 'detections']
        if found:
            parts.append(_count(sum(item.matched for item in found), 'detection'))
            parts.append(f'scores within {_small(max(item.worst_score_diff for item in found))}')
            parts.append(f'boxes within {_small(max(item.worst_box_diff for item in found))} px')
        if any(check.comparison.kind == 'seg_map' or check.comparison.has_masks for check in self.checks):
            parts.append('no clear pixel differs')
        tensors = [check.comparison for check in self.checks if check.comparison.kind == 'tensors']
        if tensors:
            parts.append(f'tensors within {_small(max(item.worst_tensor_diff for item in tensors))} of their range')
        excused = sum(len(check.comparison.excused) for check in self.checks)
        if excused:
            parts.append(f'{excused} excused')
        return f'equal: {", ".join(parts)}'

    def table(self, width: int = 120) -> Table:
        """The table of all checks, for a terminal of ``width`` columns."""
        narrow = width < _NARROW
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0) if narrow else (0, 1), pad_edge=False)
        table.add_column('image', overflow='fold', min_width=8)
        if not narrow:
            table.add_column('size', justify='right', no_wrap=True)
            table.add_column('output', no_wrap=True)
        for name in ('PyTorch', 'backend', 'score diff', 'worst diff', 'excused'):
            table.add_column(name.replace(' ', '\n') if narrow else name, justify='right', no_wrap=True)
        table.add_column('verdict', no_wrap=True, min_width=max(map(len, _STYLE)))
        for check in self.checks:
            comparison, verdict = check.comparison, WORDING[check.comparison.verdict]
            image, size = str(check.image), f'{check.size[1]}x{check.size[0]}'
            cells = [f'{image}\n{size} {check.output}'] if narrow else [image, size, check.output]
            cells += [_short(comparison.ref_count), _short(comparison.out_count), *_differences(comparison)]
            table.add_row(*map(Text, cells), Text(verdict, style=_STYLE[verdict]))
        return table

    def print(self, console: Console | None = None) -> None:
        """Print the table, what the user should know, and the verdict in the last line."""
        console = console or Console()
        if self.checks:
            console.print(self.table(console.width))
        if self.not_exercised:
            console.print(Text('not exercised: ' + '; '.join(self.not_exercised), style='dim'))
        for line in self.tolerance.loosened():
            console.print(Text(f'loosened tolerance: {line}', style='yellow'))
        for line in self.warnings:
            console.print(Text(f'warning: {line}', style='yellow'))
        console.print(Text(self.summary(), style=_STYLE[self.verdict]))


def _differences(comparison: Comparison) -> tuple[str, str, str]:
    """Cells for the score difference, the worst other difference and what is excused."""
    if comparison.kind == 'tensors':
        return '', _small(comparison.worst_tensor_diff), ''
    if comparison.kind == 'seg_map':
        return '', f'{_short(comparison.clear_pixels)} pix', f'{_short(comparison.excused_pixels)} pix'
    worst, excused = f'{_small(comparison.worst_box_diff)} px', str(len(comparison.excused))
    if comparison.has_masks:
        worst += f'\n{_short(comparison.clear_pixels)} pix'
        excused += f'\n{_short(comparison.excused_pixels)} pix'
    return _small(comparison.worst_score_diff), worst, excused


def _small(value: float) -> str:
    """A difference, short: 0, 4.1e-05, 0.0004, 12.5."""
    if value == 0:
        return '0'
    if value < 1e-4:
        return f'{value:.1e}'
    return f'{value:.4f}' if value < 1 else f'{value:.1f}'


def _short(count: int) -> str:
    """A count in at most seven characters."""
    if count < 10_000_000:
        return str(count)
    return f'{count / 1e6:.1f}M' if count < 1e10 else f'{count / 1e9:.1f}G'


def _count(number: int, what: str) -> str:
    return f'{number} {what}' + ('' if number == 1 else 's')


def _plain(value: Any) -> Any:
    """Json types, whatever number or sequence came."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (str, bool, int, float)) or value is None:
        return value
    return value.item() if hasattr(value, 'item') else str(value)
