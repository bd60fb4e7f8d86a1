"""docs/trust.json and docs/trust.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .parts import Job, jobs, rows

_PAGE = """# Trust

Made by `make trust` (`python tools/trust.py`): {minutes:.0f} minutes of work, half as many for two at once.
{run} of {jobs} jobs have been run. All of it is in `docs/trust.json`; `--only PART` runs a part, `--missing` what is
not there yet, `--quick` a few of everything.

| what was tried | how often | how it ended |
| --- | --- | --- |
{table}

## Faults and who catches them

Each is put into a good file, or into the rewriters that make it, and the result goes through the checks of `deploy` on
the fixture's images: two demo models on the demo images, six calibrated models on three images each, three models on
one square image. `caught` counts the fixtures that have what the fault breaks. Where the images cannot tell a file with
the fault from a good one, the report of the good file says so in `not_exercised`.

| fault | where | caught | not exercised, in the words of the report |
| --- | --- | --- | --- |
{faults}

The good files of other weights leave out random weights that put a box thousands of pixels outside of the image (with
YOLOX some do, up to 1e10 pixels): the rounding of float32 alone is then more than the tolerance, and the report
says "not equal", as it should of boxes that differ.

## What is promised, and what is not

- **A damaged file** is refused before ONNX Runtime reads it: it ends with its SHA-256 (see `file.md`). Without that, a
  flipped bit in a weight is another answer without a word, and a damaged graph can crash the process. The digest finds
  accidents; whoever changes a file on purpose can seal it again.
- **A checkpoint** is read without running anything in it: tensors, plain containers, NumPy scalars and arrays; objects
  of mmengine and its kin become inert. `--unsafe-checkpoint` gives that up, and says so. **A config file is Python and
  is run**, as in MMDetection.
- **A work dir** has whole files, whenever a deploy is killed; what it left behind is removed by the next. Locks are
  those of the file system: on Windows, and on network file systems without them, two deploys into one work dir at once
  may mix.
- **Ties** are excused only by what PyTorch itself shows. Which decisions the images did not put to the test is in the
  report, under `not_exercised`.
"""


def write(found: Sequence[Mapping[str, Any]], docs: Path) -> None:
    """Write both; what ``docs/trust.json`` has of other jobs stays.

    Args:
        found: of the jobs that were run.
        docs: folder of both.
    """
    path = docs / 'trust.json'
    known = json.loads(path.read_text(encoding='utf-8')) if path.is_file() else []
    entries = {_key(entry): entry for entry in [*known, *found]}
    current = {(job.name, json.dumps(job.arguments)) for job in jobs()}
    ordered = [entries[key] for key in sorted(entries) if key in current]
    path.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + '\n', encoding='utf-8')
    docs.joinpath('trust.md').write_text(page(ordered), encoding='utf-8')


def written(docs: Path) -> list[Job]:
    """The jobs that came to an end and are in ``docs/trust.json``."""
    path = docs / 'trust.json'
    known = json.loads(path.read_text(encoding='utf-8')) if path.is_file() else []
    keys = {_key(entry) for entry in known if 'error' not in entry}
    return [job for job in jobs() if (job.name, json.dumps(job.arguments)) in keys]


def _key(entry: Mapping[str, Any]) -> tuple[str, str]:
    return entry['job'], json.dumps(entry['arguments'])


def page(found: Sequence[Mapping[str, Any]]) -> str:
    """docs/trust.md."""
    minutes = sum(entry['seconds'] for entry in found) / 60
    table = [
        f'| {what} | {tried} | {ended}{"" if well else " **(not as it should)**"} |'
        for what, tried, ended, well in rows(found)
    ]
    faults = [fault for entry in found if entry['job'] == 'faults_of' for fault in entry.get('faults', ())]
    lines = []
    for name in dict.fromkeys(fault['fault'] for fault in faults):
        some = [fault for fault in faults if fault['fault'] == name]
        hidden = dict.fromkeys(f'{fault["fixture"]}: {line}' for fault in some for line in fault['not_exercised'])
        caught = sum(fault['caught'] for fault in some)
        lines.append(f'| {name} | {some[0]["kind"]} | {caught} of {len(some)} | {"; ".join(hidden)} |')
    return _PAGE.format(
        minutes=minutes, run=len(found), jobs=len(jobs()), table='\n'.join(table), faults='\n'.join(lines)
    )
