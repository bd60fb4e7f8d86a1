"""The parts of the whole, each a list of jobs that run in processes of their own; and the table of what they found."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .fixtures import CALIBRATED, NAMES, POOR

ROOT = Path(__file__).parents[3]
TIE_TESTS = ('tests/test_check/test_properties.py', 'tests/test_check/test_ties.py')


@dataclass(frozen=True)
class Job:
    """One function of a part.

    Attributes:
        part: 'faults', 'alarms', 'ties', 'checkpoints', 'work', 'inputs', 'long' or 'leaks'.
        name: of the function, and what it is about.
        arguments: of the function, without the folders.
    """

    part: str
    name: str
    arguments: tuple[Any, ...] = ()


def jobs(quick: bool = False) -> list[Job]:
    """All of them, the longest first.

    Args:
        quick: a few of everything.
    """
    names = ('demo detector', 'PSPNet') if quick else (*NAMES, *POOR)
    seeds = {name: [1 + index, 7 + index, 13 + index, 19 + index, 25 + index] for index, name in enumerate(CALIBRATED)}
    files, texts, pictures = (60, 60, 60) if quick else (900, 400, 400)
    calls = 400 if quick else 5000
    return [
        Job('work', 'kills', (4 if quick else 50,)),
        *(Job('faults', 'faults_of', (name, quick)) for name in names),
        *(
            Job('alarms', 'good_weights', (name, some[:1] if quick else some))
            for name, some in list(seeds.items())[: 2 if quick else None]
        ),
        *(Job('alarms', 'good_images', (name, 6 if quick else 30)) for name in names if name not in POOR),
        *(Job('inputs', 'fuzz', (kind, 'images', pictures)) for kind in ('detector', 'segmentor')),
        *(Job('inputs', 'fuzz', (kind, 'files', files // 2)) for kind in ('detector', 'segmentor')),
        Job('inputs', 'fuzz', ('detector', 'metadata', texts)),
        *(Job('long', 'memory', (kind, calls)) for kind in ('detector', 'segmentor')),
        *(Job('long', 'threads', (kind,)) for kind in ('detector', 'segmentor')),
        Job('leaks', 'restored'),
        *([] if quick else [Job('leaks', 'same_bytes')]),
        Job('work', 'at_once', (1 if quick else 5,)),
        Job('work', 'refusals'),
        Job('work', 'odd_paths'),
        Job('checkpoints', 'refused'),
        Job('ties', 'properties'),
    ]


def _functions() -> dict[str, Callable[..., dict[str, Any]]]:
    from . import checkpoints, faults, inputs, leaks, runs, work

    return {
        'faults_of': lambda folder, demo, name, few: faults.faults_of(name, folder, demo, few),
        'good_weights': lambda folder, demo, name, seeds: faults.good_weights(name, folder, demo, seeds),
        'good_images': lambda folder, demo, name, seeds: faults.good_images(name, folder, demo, seeds),
        'properties': lambda folder, demo: properties(),
        'refused': lambda folder, demo: checkpoints.refused(folder),
        'kills': lambda folder, demo, count: work.kills(folder, count),
        'at_once': lambda folder, demo, rounds: work.at_once(folder, rounds),
        'refusals': lambda folder, demo: work.refusals(folder),
        'odd_paths': lambda folder, demo: work.odd_paths(folder),
        'fuzz': lambda folder, demo, kind, what, count: inputs.fuzz(kind, what, folder, count),
        'memory': lambda folder, demo, kind, calls: runs.memory(kind, folder, calls),
        'threads': lambda folder, demo, kind: runs.threads(kind, folder),
        'restored': lambda folder, demo: leaks.restored(folder, demo),
        'same_bytes': lambda folder, demo: leaks.same_bytes(folder, demo),
    }


def properties() -> dict[str, Any]:
    """The property tests of ties, by pytest.

    Returns:
        ``tests`` and ``examples``, how many; ``failed``, their names.
    """
    command = [sys.executable, '-m', 'pytest', '-q', '-rf', '--hypothesis-show-statistics', *TIE_TESTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f'pytest ends with exit code {done.returncode}: {done.stdout[-300:]}')
    examples = sum(map(int, re.findall(r'(\d+) passing', done.stdout)))
    passed, failed = re.search(r'(\d+) passed', done.stdout), re.findall(r'^FAILED (\S+)', done.stdout, re.MULTILINE)
    return dict(tests=int(passed[1] if passed else 0) + len(failed), examples=examples, failed=failed)


def run(job: Job) -> dict[str, Any]:
    """One job in this process."""
    with tempfile.TemporaryDirectory(prefix='trust ') as folder:
        Path(folder).chmod(0o755)
        return _functions()[job.name](Path(folder), ROOT / 'demo', *job.arguments)


def run_in_process(job: Job, limit: int = 1800) -> dict[str, Any]:
    """One job in a process of its own, so that a crash or a hang costs no other.

    Args:
        job: to run.
        limit: in seconds.

    Returns:
        What the job found, and ``seconds``, how long it took; ``error`` where it did not come to an end.
    """
    begin = time.perf_counter()
    found = _found(job, limit)
    return {**found, 'seconds': round(time.perf_counter() - begin, 1)}


def _found(job: Job, seconds: int) -> dict[str, Any]:
    entry = dict(part=job.part, job=job.name, arguments=list(job.arguments))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, 'found.json')
        command = [sys.executable, '-W', 'ignore', '-m', 'mmdeploy_lite.testing.trust', str(out), json.dumps(entry)]
        environment = {**os.environ, 'OMP_NUM_THREADS': '1', 'OPENCV_LOG_LEVEL': 'SILENT'}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=seconds, check=False, env=environment
            )
        except subprocess.TimeoutExpired:
            return {**entry, 'error': f'not done within {seconds} s'}
        if out.is_file():
            return {**entry, **json.loads(out.read_text(encoding='utf-8'))}
        last = (done.stderr.strip().splitlines() or [f'exit code {done.returncode}'])[-1]
        return {**entry, 'error': f'{last} (exit code {done.returncode})'}


def rows(found: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str, bool]]:
    """The table: what was tried, how often, how it ended, and whether all is well."""
    table = []

    def add(what: str, tried: int, ended: int, words: str) -> None:
        if tried:
            table.append((what, str(tried), f'{ended} {words}', ended == tried))

    def of(name: str) -> list[Mapping[str, Any]]:
        return [entry for entry in found if entry['job'] == name and 'error' not in entry]

    def total(entries: Sequence[Mapping[str, Any]], key: str) -> int:
        return sum(len(entry[key]) if isinstance(entry[key], list) else entry[key] for entry in entries)

    faults = [fault for entry in of('faults_of') for fault in entry['faults']]
    rich = [fault for fault in faults if fault['fixture'] not in POOR]
    poor = [fault for fault in faults if fault['fixture'] in POOR]
    shown = [fault for fault in rich if not fault['not_exercised']]
    for kind, words in (('graph', 'in the graph of a finished file'), ('rewriter', 'in a rewriter')):
        some = [fault for fault in shown if fault['kind'] == kind]
        kinds = len({fault['fault'] for fault in some})
        add(f'faults {words} ({kinds} kinds)', len(some), sum(fault['caught'] for fault in some), 'caught')
    hidden = [fault for fault in [*rich, *poor] if not fault['caught']]
    add(
        'faults that the images cannot show',
        len(hidden),
        sum(bool(fault['not_exercised']) for fault in hidden),
        'said in "not exercised"',
    )
    if poor:
        add(
            'faults on one square image',
            len(poor),
            sum(fault['caught'] or bool(fault['not_exercised']) for fault in poor),
            'caught or said in "not exercised"',
        )
    good = of('good_weights')
    add(
        'good files of other weights', total(good, 'deployed'), total(good, 'deployed') - total(good, 'alarms'), 'equal'
    )
    good = of('good_images')
    add('good files on other images', total(good, 'compared'), total(good, 'compared') - total(good, 'alarms'), 'equal')
    ties = of('properties')
    add('property tests of ties', total(ties, 'tests'), total(ties, 'tests') - total(ties, 'failed'), 'hold')
    for entry in of('refused'):
        add(
            'checkpoints with code in them',
            entry['payloads'],
            entry['refused'] - len(entry['ran']),
            'refused, none ran',
        )
    for entry in of('kills'):
        add('kills at random moments', entry['kills'], entry['survived'], 'times the earlier file was whole')
        add('cleaning up after them', 1, int(entry['cleaned']), 'done by the next run')
    for entry in of('at_once'):
        add('two deploys into one work dir at once', entry['rounds'], entry['one'], 'times all files were of one')
    for name, what in (('refusals', 'no room, no right to write'), ('odd_paths', 'odd paths')):
        for entry in of(name):
            add(what, len(entry['cases']), sum(entry['cases'].values()), 'as they should')
    for kind, what in (('files', 'bad .onnx files'), ('metadata', 'bad metadata'), ('images', 'images of every kind')):
        some = [entry for entry in of('fuzz') if entry['what'] == kind]
        clear = sum(entry['answers'].get(word, 0) for entry in some for word in ('our error', 'right answer'))
        add(what, total(some, 'tried'), clear, 'answered clearly')
    for entry in of('memory'):
        grown = f'{entry["mb_per_1000_calls"]} MB per 1,000 calls'
        table.append((f'memory of a {entry["kind"]}', f'{entry["calls"]} calls', grown, entry['flat']))
    for entry in of('threads'):
        what = f'{entry["threads"]} threads that share a {entry["kind"]}'
        add(what, entry['images'], entry['images'] - entry['differ'], 'answers of one thread alone')
    for entry in of('restored'):
        what = f'deploys, ended well or badly ({entry["compared"]} objects each)'
        add(what, entry['deploys'], entry['deploys'] - len(entry['leaks']), 'left nothing replaced')
    for entry in of('same_bytes'):
        add(
            'second deploys in one process',
            entry['models'],
            entry['models'] - len(entry['differ']),
            'the bytes of a fresh one',
        )
    for entry in found:
        if 'error' in entry:
            table.append((f'{entry["job"]} {entry["arguments"]}', '', f'failed: {entry["error"]}', False))
    return table
