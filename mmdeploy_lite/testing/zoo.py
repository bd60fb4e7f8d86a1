"""The libraries' own configs, exported with calibrated weights and compared, one process each."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..check.compare import compare_detections
from ..check.tolerance import Tolerance
from ..errors import DeployError
from .images import empty, faint, scene
from .silence import distinct_scores
from .zoo_table import FIXED

if TYPE_CHECKING:
    from ..tasks import Sample
    from .models import TestModel

FLOAT32_LIMIT = {
    'dino': dict(score=1e-3, box_px=0.1),
    'dab_detr': dict(score=1e-3),
    'gn+ws': dict(score=1e-3, box_px=0.1),
}
"""Tolerances of families whose decoders refine boxes over and over, or whose weights are standardized in every layer (a
random network of these multiplies rounding from block to block), where PyTorch in float32 is further from itself in
float64 than the table allows. The entry's note says by how much, and how far the file is.
"""

MIN_DISTINCT = 20
"""Fewer different scores over all images prove nothing: such a config counts as not tested."""
MIN_CLASSES = 5
"""So does a segmentor that tells fewer classes apart."""


TRACER = 'TorchScriptExporter'


def zoo_entry(config: str, exporter: str = TRACER, fixed: bool = False) -> dict[str, Any]:
    """Export one config and compare it on three images and an empty one.

    Args:
        config: ``mmdet::...`` or ``mmseg::...``.
        exporter: of the registry EXPORTERS. Another than the tracer is timed beside it.
        fixed: one height and width; else any where the model allows it.

    Returns:
        Plain json types: ``config``, ``family``, ``status`` ('equal', 'not equal', 'undecidable', 'not tested',
        'refused', 'failed' or 'PyTorch fails'), and what was measured.
    """
    entry: dict[str, Any] = dict(
        config=config, family=config.split('::')[1].split('/')[0], status='failed', equal=False
    )
    scale = (300, 300) if 'ssd300' in config else (384, 256)  # SSD300 runs at no smaller size
    try:
        if config.startswith('mmseg::'):
            scale = _crop(config)
        entry.update(_export(config, scale, exporter, fixed))
    except DeployError as error:
        missing = _missing_package(error)
        entry.update(
            status='PyTorch fails' if missing else 'refused', note=missing or f'{type(error).__name__}: {error}'
        )
    # a config of the wheels by its name alone
    entry['note'] = re.sub(r'\S*\.mim/configs/', '', entry.get('note', ''))
    return entry


def _crop(config: str) -> tuple[int, int]:
    """(w, h) of the crop that a segmentor was trained on: of one that slides all of it, else up to 512 pixels."""
    from ..loading import load_config

    cfg = load_config(config)
    height, width = cfg.get('crop_size', (512, 512))
    # transformers that slide run at no other size than their windows'
    limit = 10_000 if cfg.model.get('test_cfg', {}).get('mode') == 'slide' else 512
    return min(int(width), limit), min(int(height), limit)


def _missing_package(error: BaseException | None) -> str | None:
    """Python's own words where a package that the config needs is not there."""
    while error is not None:
        if isinstance(error, ImportError):
            return f'{type(error).__name__}: {error}'
        error = error.__cause__ or error.__context__
    return None


def _model(config: str, scale: tuple[int, int], seed: int = 0) -> tuple[TestModel, list[Sample]]:
    """The model, and the images that it is compared on: three, and an empty one. PyTorch has run on each size."""
    from .models import zoo_model

    model, (width, height) = zoo_model(config, scale=scale, seed=seed), scale
    images = {
        'landscape': scene(11, height, width),
        'portrait': scene(12, width, height),
        # a whole number of the coarsest cells: some segmentors run at no other size, and some that slide at none
        # smaller than their window
        'other': scene(13, height, round(width * (1.1 if getattr(model.task, 'slides', False) else 0.9) / 32) * 32),
        'empty': empty(height, width),
    }
    samples = model.samples(images)
    for sample in (samples[0], samples[1], samples[3]):
        model.task.test_step(sample)
    try:
        model.task.test_step(samples[2])
    except Exception:  # a table of positions: it runs at one size
        samples[2] = model.task.prepare('other', scene(13, height, width))
        model.task.test_step(samples[2])
    return model, samples


def _busy_segmentor(config: str, scale: tuple[int, int]) -> tuple[TestModel, list[Sample]]:
    """The same with the first weights of four that tell enough classes apart, or the last ones."""
    for seed in range(4):
        model, samples = _model(config, scale, seed)
        if model.task.name != 'segmentation':
            break
        maps = [model.task.reference(sample)[0].seg_map for sample in samples]
        if len(np.unique(np.concatenate([seg_map.ravel() for seg_map in maps]))) >= MIN_CLASSES:
            break
    return model, samples


def _export(config: str, scale: tuple[int, int], exporter: str, fixed: bool) -> dict[str, Any]:
    from ..deploy_config import DeployConfig
    from ..export.attempt import Exporting
    from ..export.graphs import all_nodes
    from ..prepare import merge_settings
    from ..progress import Stages
    from .models import UnfitModelError, find_busy
    from .panoptic import find_segments

    try:
        model, samples = _busy_segmentor(config, scale) if config.startswith('mmseg::') else _model(config, scale)
    except DeployError:
        raise
    except Exception as error:
        return dict(status='PyTorch fails', note=f'{type(error).__name__}: {str(error).strip().splitlines()[0]}')
    notes = list(model.edits)
    if model.task.kind == 'detections':
        try:
            find_busy(model, samples[:3], samples[3])
        except UnfitModelError as error:
            notes.append(str(error))
            if model.task.nms_configs():
                samples[3] = model.task.prepare('faint noise', faint(*scale[::-1]))
                notes.append('the fourth image has faint noise: where nothing differs, NMS of equal scores is chance')
    tested = True
    if model.task.name == 'panoptic':
        try:
            notes.append(find_segments(model, samples[:3]))
        except UnfitModelError as error:
            notes.append(str(error))
            tested = False
    tolerance = FLOAT32_LIMIT.get(config.split('::')[1].split('/')[0], {})
    overrides = {'tolerance': tolerance, 'exporter': {'type': exporter}}
    settings: DeployConfig = merge_settings(type(model.task), None, model.loaded.cfg, overrides)
    model.task.tolerance = Tolerance.from_config(settings.tolerance)
    stages = Stages()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'model.onnx')
        export = Exporting(model.task, model.loaded, settings, model.steps, path, stages)
        attempt = export.run(samples, FIXED if fixed else None)
        ratio = _time_ratio(model.task, samples[0], path, settings)
        megabytes = path.stat().st_size / 1e6
        any_batch = _any_batch(model.task, path, attempt.samples)
        beside = {} if exporter == TRACER else _beside_tracer(model.task, attempt, path)
    if tolerance:
        notes.append(_float32_limit(model.task, samples[0], attempt.verification.answers[0]))
    checks = [check.comparison for check in attempt.verification.checks]
    verdicts = {check.verdict for check in checks}
    status = 'not equal' if 'unequal' in verdicts else 'undecidable' if 'undecidable' in verdicts else 'equal'
    scores = [ref.scores for ref, _ in attempt.verification.answers if hasattr(ref, 'scores')]
    if not tested or scores and distinct_scores(np.concatenate(scores)) < MIN_DISTINCT:
        status = 'not tested'
    maps = [ref.seg_map for ref, _ in attempt.verification.answers if hasattr(ref, 'seg_map')]
    classes = len(np.unique(np.concatenate([seg_map.ravel() for seg_map in maps]))) if maps else None
    if classes is not None and classes < MIN_CLASSES:
        status = 'not tested'
    reasons = [reason for check in checks for reason in check.reasons]
    if attempt.given_up is not None:
        notes.append("without Winograd's algorithm: with it the file is not equal")
    return dict(
        status=status,
        equal=status == 'equal',
        task=model.task.name,
        images=len(checks),
        classes=classes,
        worst_score_diff=max(check.worst_score_diff for check in checks),
        worst_box_diff=max(check.worst_box_diff for check in checks),
        clear_pixels=sum(check.clear_pixels for check in checks),
        excused=sum(len(check.excused) for check in checks),
        excused_pixels=sum(check.excused_pixels for check in checks),
        nodes=sum(1 for _ in all_nodes(attempt.graph.model.graph)),
        mb=round(megabytes, 1),
        export_seconds=round(stages.times['export'], 1),
        time_ratio=ratio,
        dynamic=attempt.reason is None,
        any_batch=any_batch,
        static_reason=attempt.reason,
        rewriters=sorted(attempt.graph.fired),
        note='; '.join(filter(None, [*notes, *model.task.notes, *reasons[:2]])),
        **beside,
    )


def _float32_limit(task: Any, sample: Any, answers: tuple[Any, Any]) -> str:
    """How far PyTorch and the file, both in float32, are from PyTorch in float64 on one image.

    Of a model that cannot run in float64: how far PyTorch is from itself where the last place is moved.
    """
    exact, words = task.double_answer(sample), []
    others = list(zip(('PyTorch', 'the file'), answers, strict=True))
    base = 'PyTorch in float64'
    if exact is None:
        exact, base = answers[0], 'PyTorch, which cannot run in float64,'
        moved = list(task.moved_answers(sample, task._read))
        others = [*(('PyTorch where the last place is moved', answer) for answer in moved), others[1]]
    for name, answer in others:
        found = compare_detections(exact, answer, sample.image.shape[:2], task.tolerance)
        missing = f' and lacks {len(found.unmatched_ref)}' if found.unmatched_ref else ''
        words.append(f'{name} {found.worst_score_diff:.1g} in score, {found.worst_box_diff:.1g} px{missing}')
    loosened = ', '.join(task.tolerance.loosened())
    return f'float32 is the limit: from {base} {" and ".join(words)}; tolerance {loosened}'


def _any_batch(task: Any, path: Path, samples: Sequence[Any]) -> bool:
    """Whether the file, made one for any batch, answers two images together as it answers each alone."""
    import onnx

    from ..export.batch import over_images
    from ..runtime.seal import seal
    from ..runtime.session import FileSession

    whole = path.with_name('batch.onnx')
    try:
        onnx.save(over_images(onnx.load(str(path))), str(whole))
        seal(whole)
    except DeployError:
        return False
    first = samples[0]
    pair = [next((item for item in samples[1:] if task.fit_together(first, item)), first), first]
    # one session at a time: either may take gigabytes
    alone = [FileSession(path).run(task.feeds([sample])) for sample in pair]
    together = FileSession(whole).run(task.feeds(pair))
    for index, outputs in enumerate(alone):
        wanted, got = task.answer(outputs), task.answer(together, index)
        values = zip(vars(wanted).values(), vars(got).values(), strict=True)
        if not all(np.array_equal(one, two) for one, two in values if isinstance(one, np.ndarray)):
            return False
    return True


def _time_ratio(task: Any, sample: Any, path: Path, settings: Any) -> float:
    """Median time of the file over PyTorch's, three rounds turn by turn: an indication, not a benchmark."""
    import torch

    from ..benchmark.files import file_runner
    from ..benchmark.measure import interleave

    sides = {
        'PyTorch': lambda: task.test_step(sample),
        'file': file_runner(path, task.feeds([sample]), torch.get_num_threads()),
    }
    eager, file = interleave(sides, runs=3, warmup=1)
    return round(file.median / eager.median, 2)


def _beside_tracer(task: Any, attempt: Any, path: Path) -> dict[str, Any]:
    """The same model by the tracer: its nodes, and the median time of the other file over its file's."""
    import torch

    from ..benchmark.files import file_runner
    from ..benchmark.measure import interleave
    from ..export.graphs import all_nodes
    from .exporting import export

    first = attempt.samples[0]
    alike = [sample for sample in attempt.samples if task.fit_together(first, sample)]
    try:
        traced = export(task, [first, alike[-1]], path.parent, dynamic=attempt.reason is None)
    except DeployError as error:
        return dict(tracer_note=str(error).splitlines()[0])
    feeds, threads = task.feeds([first]), torch.get_num_threads()
    files = {'tracer': path.parent / f'{task.name}.onnx', 'other': path}
    sides = {name: file_runner(file, feeds, threads) for name, file in files.items()}
    tracer, other = interleave(sides, runs=7, warmup=1)
    nodes = sum(1 for _ in all_nodes(traced.graph.model.graph))
    return dict(tracer_nodes=nodes, tracer_ratio=round(other.median / tracer.median, 2))


def read_list(path: Path, package: str) -> list[str]:
    """Config names from a list of relative paths."""
    lines = path.read_text(encoding='utf-8').splitlines()
    return [f'{package}::{line.strip()}' for line in lines if line.strip() and not line.startswith('#')]


def run_in_process(config: str, seconds: int, exporter: str = TRACER, fixed: bool = False) -> dict[str, Any]:
    """:func:`zoo_entry` in a process of its own, so that a crash or a hang costs one entry."""
    family = config.split('::')[1].split('/')[0]
    failed = dict(config=config, family=family, status='failed', equal=False)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, 'entry.json')
        command = [sys.executable, '-W', 'ignore', '-m', 'mmdeploy_lite.testing.zoo', config, str(out), exporter]
        command += ['--fixed'] * fixed
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            return {**failed, 'note': f'not done within {seconds} s'}
        if out.is_file():
            return json.loads(out.read_text(encoding='utf-8'))
        last = (done.stderr.strip().splitlines() or [f'exit code {done.returncode}'])[-1]
        return {**failed, 'note': last}


if __name__ == '__main__':
    from mmdeploy_lite.testing.zoo import zoo_entry as entry_of

    made = entry_of(sys.argv[1], sys.argv[3], '--fixed' in sys.argv)
    Path(sys.argv[2]).write_text(json.dumps(made), encoding='utf-8')
