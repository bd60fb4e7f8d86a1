"""``docs/zoo.md`` and the list that it is made from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

SECOND = 'torch_export'
"""The key of what TorchExportExporter made of a config."""
FIXED = 'asked for'
"""Why a file has one size where the caller wants that."""

REMARKS = {
    'mmdet::point_rend/point-rend_r50-caffe_fpn_ms-1x_coco.py': 'a run from before masks were held against those of'
    ' moved weights; needs another one, which took more than 22 GB of memory and did not end',
}
"""What a config that is not equal would need; of runs before this text."""


def write_table(entries: Sequence[dict[str, Any]], path: Path, total: int) -> None:
    """``docs/zoo.md`` from the entries of ``docs/zoo.json``.

    Args:
        entries: of the configs that were run.
        path: of the page.
        total: number of configs in the lists.
    """
    lines = [
        '# The zoo',
        '',
        'Calibrated random weights, three images and an empty one, and other sizes where the file takes them. Made by',
        f'`make zoo` from `docs/zoo.json`; every row is a run. {len(entries)} of the {total} configs in'
        ' `tools/zoo_configs` have been run; `make zoo` runs the others. Where the column `batch` is empty, it was not'
        ' tried.',
        '',
    ]
    for package, title in (('mmdet', 'MMDetection'), ('mmseg', 'MMSegmentation')):
        chosen = [entry for entry in entries if entry['config'].startswith(package)]
        if not chosen:
            continue
        able = [entry for entry in chosen if entry['status'] != 'PyTorch fails']
        equal = sum(entry['equal'] for entry in chosen)
        lines += [
            f'## {title}: {equal} of {len(able)} equal ({len(chosen) - len(able)} that PyTorch itself cannot run)',
            '',
        ]
        columns = ('config', 'status', 'score diff', 'box diff / pixels', 'excused', 'nodes', 'time / PyTorch')
        lines += ['| ' + ' | '.join([*columns, 'H, W', 'batch', 'note']) + ' |', '| --- ' * 10 + '|']
        lines += [_row(entry) for entry in chosen]
        lines += ['']
    path.write_text('\n'.join([*lines, *_second_exporter(entries), *_rewriters(entries)]), encoding='utf-8')


def _second_exporter(entries: Sequence[dict[str, Any]]) -> list[str]:
    """The same configs by ``torch.export``, beside the tracer's numbers."""
    chosen = [entry for entry in entries if SECOND in entry]
    if not chosen:
        return []
    equal = sum(entry[SECOND]['equal'] for entry in chosen)
    lines = [
        f'## By torch.export: {equal} of {len(chosen)} equal',
        '',
        'The same weights and images through `TorchExportExporter` (`tools/zoo.py --exporter torch_export`). Numbers in'
        " brackets are the tracer's; time is that of its file over the tracer's file. Files of one size were asked for"
        ' (`--fixed`), unless the note says why they had to be.',
        '',
        '| config | status | nodes | export s | time / tracer | H, W | note |',
        '| --- ' * 7 + '|',
    ]
    for entry in chosen:
        other = entry[SECOND]
        reason = other.get('static_reason')
        note = '; '.join(filter(None, [other.get('note', ''), '' if reason == FIXED else reason]))
        note = note.replace('\n', ' ').replace('|', '/')[:300]
        sizes = {True: 'dynamic', False: 'fixed', None: ''}[other.get('dynamic')]
        beside = {**entry, 'nodes': other.get('tracer_nodes', entry.get('nodes', '-'))}  # of the very same run
        numbers = [f'{other[key]} ({beside[key]})' if key in other else '' for key in ('nodes', 'export_seconds')]
        cells = [_name(entry), other['status'], *numbers, str(other.get('tracer_ratio', '')), sizes, note]
        lines.append(f'| {" | ".join(cells)} |')
    return [*lines, '']


def _name(entry: dict[str, Any]) -> str:
    return entry['config'].split('::')[1].removesuffix('.py')


def _rewriters(entries: Sequence[dict[str, Any]]) -> list[str]:
    """Which families each rewriter serves: where it was called, not where it was needed."""
    families: dict[str, set[str]] = {}
    for entry in entries:
        for key in entry.get('rewriters', ()):
            families.setdefault(key, set()).add(entry['family'])
    folder = Path(__file__).parents[1] / 'rewriters'
    sources = [path.read_text(encoding='utf-8').splitlines() for path in sorted(folder.glob('*.py'))]
    count = sum(bool(line.strip()) for source in sources for line in source)
    registered = sum(line.startswith('@REWRITERS.register_module') for source in sources for line in source)
    lines = [
        '## The rewriters',
        '',
        f'{registered} in {count} lines, comments included (`mmdeploy_lite/rewriters/`). Those that were called in the'
        ' runs above, by the number of families:',
        '',
        '| rewriter | families | which |',
        '| --- | --- | --- |',
    ]
    for key, names in sorted(families.items(), key=lambda item: (-len(item[1]), item[0])):
        shown = ', '.join(sorted(names)) if len(names) <= 12 else ', '.join([*sorted(names)[:12], '...'])
        lines.append(f'| `{key}` | {len(names)} | {shown} |')
    return [*lines, '']


def _row(entry: dict[str, Any]) -> str:
    name = _name(entry)
    note = str(entry.get('note', '')).replace('\n', ' ').replace('|', '/')[:300]
    if not entry['equal'] and entry['config'] in REMARKS:
        note = f'{REMARKS[entry["config"]]}; {note}'
    if 'nodes' not in entry:
        return f'| {name} | {entry["status"]} | | | | | | | | {note} |'
    box = (
        f'{entry["worst_box_diff"]:.1g} px'
        if entry['task'] not in ('segmentation', 'panoptic')
        else f'{entry["clear_pixels"]} pixels'
    )
    sizes = 'dynamic' if entry['dynamic'] else 'fixed'
    batch = {True: 'any', False: 'fixed', None: ''}[entry.get('any_batch')]
    return (
        f'| {name} | {entry["status"]} | {entry["worst_score_diff"]:.1g} | {box} | {entry["excused"]}'
        f' | {entry["nodes"]} | {entry["time_ratio"]} | {sizes} | {batch} | {note} |'
    )


def merged(old: Iterable[dict[str, Any]], new: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries with one replaced or added, sorted by config; what the second exporter made of it stays."""
    entries = {entry['config']: entry for entry in old}
    before = {key: value for key, value in entries.get(new['config'], {}).items() if key == SECOND}
    entries[new['config']] = {**before, **_anywhere(new)}
    return [entries[name] for name in sorted(entries)]


def with_second(old: Iterable[dict[str, Any]], new: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries with what the second exporter made of one of them."""
    said = {key: value for key, value in _anywhere(new).items() if key not in ('config', 'family', 'rewriters')}
    return [{**entry, SECOND: said} if entry['config'] == new['config'] else entry for entry in old]


def _anywhere(entry: dict[str, Any]) -> dict[str, Any]:
    """Without where the libraries are installed, which says nothing about the models."""
    installed = re.compile(r'/\S*/(mm(?:det|seg|cv|engine|deploy_lite)/)')
    return {key: installed.sub(r'\1', value) if isinstance(value, str) else value for key, value in entry.items()}
