"""Every fault on every fixture that has what it breaks; and good files, which must pass."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...apis import deploy
from ...check.verify import verify
from ...errors import DeployError
from ...export.attempt import build_from
from ...registry import BACKENDS
from ..images import scene
from ..models import UnfitModelError
from . import graph_faults, nms_faults  # noqa: F401  (they register what they have)
from .bench import Bench, Verdict
from .edits import GRAPH_FAULTS, NotApplicableError, apply
from .fixtures import fixture
from .rewriter_faults import REWRITER_FAULTS

NOT_EXERCISED: dict[str, tuple[str, ...]] = {
    'sx and sy swapped': ('every image is scaled by the same factor',),
    'scale factor ignored': ('no image is scaled',),
    'height and width of the original swapped': ('every image is square',),
    'padding value': ('no image is padded',),
    'begin and end pads swapped': ('no image is padded',),
    'finest level skipped': ('no object comes from level',),
    'coarsest level skipped': ('no object comes from level',),
    'finest RoIs at another scale': ('no RoI is on level',),
    'coarsest RoIs at another scale': ('no RoI is on level',),
    'top-k halved': ('the cap of',),
    'nms_pre halved': ('no level has more candidates than nms_pre',),
    'score_thr ignored': ('the score threshold', 'whether the score threshold'),
    'one class for each anchor': ('no place of the head gives objects of two classes',),
    'IoU threshold 0.1 higher': ('the IoU threshold', 'NMS suppressed nothing'),
    'NMS left out': ('NMS suppressed nothing',),
    'class offset dropped from NMS': ('no objects of different classes overlap',),
    'class-agnostic for class-aware': ('no objects of different classes overlap',),
    'clipping to padding': ('no box reaches the right or lower border',),
    'count_mat off by one window': ('every image is a single window',),
    'count_mat left out': ('every image is a single window',),
    'one window missing': ('every image is a single window',),
}
"""What the report's list of what was not exercised must say, where images cannot tell a file with the fault from a good
one. Faults that are not here show on every image.
"""


def faults_of(name: str, folder: Path, demo: Path, few: bool = False) -> dict[str, Any]:
    """All faults of one fixture.

    Args:
        name: of the fixture.
        folder: for files.
        demo: folder of the demo.
        few: the quickest ones only: every fourth edit of a graph.

    Returns:
        ``good``, the verdict of the good file; ``not_exercised``; and ``faults``, each a dict of plain json types.
    """
    bench = Bench(fixture(name, folder / 'model', demo), folder)
    entries = [_entry(name, kind, fault, verdict, bench) for kind, fault, verdict in _verdicts(name, bench, few)]
    return dict(good=bench.good.word, not_exercised=bench.not_exercised, faults=entries)


def _verdicts(name: str, bench: Bench, few: bool) -> Iterator[tuple[str, str, Verdict]]:
    for index, (fault, edit) in enumerate(GRAPH_FAULTS.items()):
        if few and index % 4:
            continue
        try:
            broken = apply(edit, bench.model)
        except NotApplicableError:
            continue
        yield 'graph', fault, bench.check(broken)
    for fault, (rewriters, fixtures) in REWRITER_FAULTS.items():
        if few or name.partition(',')[0] not in fixtures:
            continue
        verdict, graph = bench.rebuild(rewriters)
        assert graph != bench.good_graph, f"'{fault}' changed nothing in the graph of {name}"
        yield 'rewriter', fault, verdict


def _entry(name: str, kind: str, fault: str, verdict: Verdict, bench: Bench) -> dict[str, Any]:
    lines = [line for line in bench.not_exercised if line.startswith(NOT_EXERCISED.get(fault, ()))]
    return dict(
        fixture=name,
        kind=kind,
        fault=fault,
        verdict=verdict.word,
        why=verdict.why.replace(f'{bench.path.parent}{os.sep}', ''),
        caught=verdict.caught,
        not_exercised=lines if not verdict.caught else [],
    )


def good_images(name: str, folder: Path, demo: Path, seeds: int) -> dict[str, Any]:
    """The good file of a fixture on images of many seeds.

    Returns:
        ``compared``, how many images, and ``alarms``, those that were not equal.
    """
    bench = Bench(fixture(name, folder / 'model', demo), folder)
    session = build_from(BACKENDS, bench.prepared.settings.backend).load(bench.path)
    alarms = []
    for seed in range(seeds):
        image = scene(7000 + seed, *[(151, 190), (190, 151), (140, 190), (180, 180)][seed % 4])
        sample = bench.task.prepare(f'seed {seed}', image)
        found = verify(bench.task, session, [sample], bench.task.tolerance, True)
        alarms += [f'{name}, {check.image}: {check.comparison.reasons}' for check in found.checks if not found.equal]
    return dict(compared=seeds, alarms=alarms)


def good_weights(name: str, folder: Path, demo: Path, seeds: list[int]) -> dict[str, Any]:
    """``deploy`` on a calibrated model with weights and images of several seeds.

    Returns:
        ``deployed``, how many, and ``alarms``, those that were not equal.
    """
    alarms, done = [], 0
    for wanted in seeds:
        for seed in range(wanted, wanted + 1000, 100):  # random weights may find nothing in the images
            place = folder / f'{name} {seed}'
            try:
                made = fixture(name, place, demo, seed)
                break
            except UnfitModelError:
                continue
        try:
            result = deploy(
                made.config, made.checkpoint, made.images, work_dir=place / 'out', cfg_options=made.cfg_options
            )
            why = '' if result.equal else str([check.comparison.reasons for check in result.report.checks])
        except DeployError as error:
            why = str(error)
        done += 1
        alarms += [f'{name}, seed {seed}: {why}'] if why else []
    return dict(deployed=done, alarms=alarms)
