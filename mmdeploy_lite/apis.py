"""The project in Python: the same as the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .check.images import variants
from .check.report import Report
from .check.runtime_check import check_pipeline, check_runtime
from .errors import ConfigError
from .export.attempt import Attempt, Exporting, build_from
from .export.describe import file_facts, versions
from .loading import check_image
from .precision.lower import build_scheme, lower
from .precision.report import PrecisionReport
from .precision.scheme import Scheme
from .prepare import Prepared, prepare
from .progress import Stages
from .registry import BACKENDS, REWRITERS
from .rewriting import build_rewriters
from .tasks import BaseTask, Sample
from .workdir import Staging, disk_errors, put_in_place

if TYPE_CHECKING:
    from .evaluation import Evaluation
    from .export.draft import Branch


@dataclass
class DeployResult:
    """What a deployment made.

    Attributes:
        path: the file: ``model.onnx``, or ``model.unequal.onnx`` where it is not equal.
        report: also saved as ``report.json``.
        pictures: PyTorch beside the backend, one per image given.
        task: that was inferred.
        lowered: the less exact file, where the deploy config asks for one: ``model.<type>.onnx``, or
            ``model.<type>.refused.onnx`` where it loses more than it may.
    """

    path: Path
    report: Report
    pictures: list[Path]
    task: BaseTask
    lowered: Path | None = None

    @property
    def equal(self) -> bool:
        """The file answers what ``model.predict`` answers."""
        return self.report.equal

    @property
    def accepted(self) -> bool:
        """All that was asked for is there: the file is equal, and a less exact one loses no more than it may."""
        return self.equal and (self.report.precision is None or self.report.precision.accepted)


def deploy(
    config: str | Path,
    checkpoint: str | Path,
    images: str | Path | Sequence[str | Path],
    *,
    deploy_cfg: str | Path | Mapping[str, Any] | None = None,
    work_dir: str | Path | None = None,
    shape: Sequence[int] | None = None,
    device: str = 'cpu',
    cfg_options: Mapping[str, Any] | None = None,
    allow_mismatch: bool = False,
    unsafe_checkpoint: bool = False,
    stages: Stages | None = None,
) -> DeployResult:
    """Export a model as one ONNX file and compare the file with PyTorch. Starts no process.

    Args:
        config: a file, or a name like ``mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py``.
        checkpoint: the trained weights.
        images: one or more image files. The first is traced; all are compared, and what can be made of the first.
        deploy_cfg: a deploy config: file, name, or its ``deploy`` dict; None takes the task's default.
        work_dir: where ``model.onnx``, ``report.json`` and ``compare_<image>.png`` go; None for ``work_dirs/<config
            name>``.
        shape: (h, w) of the file's ``image`` in pixels, fixed in the graph; None keeps it dynamic where the model
            allows.
        device: that PyTorch runs on.
        cfg_options: over the config, by dotted key; ``deploy....`` goes over the deploy config.
        allow_mismatch: go on with a checkpoint that does not fit the model.
        unsafe_checkpoint: unpickle whatever the checkpoint holds: it can run any code.
        stages: shows and times the stages.

    Returns:
        The file's path and the report.

    Raises:
        DeployError: what is wrong with the input, or cannot be exported. ``model.onnx`` of an earlier run stays as it
            was.
    """
    stages = stages or Stages()
    paths = [Path(path) for path in ([images] if isinstance(images, (str, Path)) else images)]
    if not paths:
        raise ConfigError('no image given; the model is traced and compared on at least one')
    with stages.stage('load'):
        pictures = [check_image(path) for path in paths]
        prepared = prepare(
            config,
            checkpoint,
            deploy_cfg=deploy_cfg,
            work_dir=work_dir,
            shape=shape,
            device=device,
            cfg_options=cfg_options,
            allow_mismatch=allow_mismatch,
            unsafe_checkpoint=unsafe_checkpoint,
        )
    task, shape = prepared.task, prepared.shape
    backend = build_from(BACKENDS, prepared.settings.backend)
    scheme = build_scheme(prepared.settings.precision)
    carries_pipeline = prepared.settings.input.get('runtime_pipeline', True)
    if carries_pipeline:
        check_pipeline(task)
    with stages.stage('prepare'):
        named = list(zip([path.name for path in paths], pictures, strict=True))
        samples = [task.prepare(*item) for item in [*named, *variants(*named[0])]]
    with disk_errors(), Staging(prepared.folder) as staging:
        temporary = staging.folder / 'model.onnx'
        exporting = Exporting(task, prepared.loaded, prepared.settings, prepared.steps, temporary, stages)
        reason = f'exported with --shape {shape[0]} {shape[1]}' if shape else None
        attempt = exporting.run(samples, reason)
        if carries_pipeline and not task.runtime_reads:
            attempt.verification.not_exercised.append(f"the runtime: it does not read '{task.outputs}' outputs")
        elif carries_pipeline:
            with stages.stage('runtime'):
                options = getattr(backend, 'runtime_options', {})
                checks, skipped = check_runtime(temporary, task, samples[: len(paths)], paths, **options)
            attempt.verification.checks += checks
            attempt.verification.not_exercised += skipped
        report = _report(attempt, prepared, stages, temporary)
        report.versions = {**report.versions, **getattr(backend, 'versions', {})}
        name = 'model.onnx' if report.equal else 'model.unequal.onnx'
        report.file.path = str(prepared.folder / name)
        with stages.stage('write'):
            put_in_place(temporary, staging.folder / name)
            drawn = _draw(staging.folder, prepared, attempt, paths, getattr(backend, 'name', report.backend))
        obsolete, lowered = ['model.unequal.onnx'] if report.equal else [], None
        if scheme is not None and report.equal:
            report.precision = _lower(scheme, prepared, attempt, len(paths), backend, staging.folder / name, stages)
            lowered = Path(report.precision.file.path)
            obsolete += [f'model.{scheme.name}.refused.onnx'] if report.precision.accepted else []
        elif scheme is not None:
            report.warnings.append(f'{scheme.name} was not made: the float32 file it would be made of is not equal')
        report.stage_times = dict(stages.times)
        report.save(staging.folder / 'report.json')
        # until here an earlier model.onnx is as it was
        staging.publish(name, obsolete)
    pictures = [prepared.folder / picture.name for picture in drawn]
    return DeployResult(prepared.folder / name, report, pictures, task, lowered)


def _lower(
    scheme: Scheme,
    prepared: Prepared,
    attempt: Attempt,
    count: int,
    backend: Any,
    exact: Path,
    stages: Stages,
) -> PrecisionReport:
    """The less exact file, beside the exact one, under the name that its loss gives it."""
    settings, path = prepared.settings, exact.with_name(f'model.{scheme.name}.onnx')
    report = lower(
        scheme,
        exact,
        path,
        prepared.task,
        attempt,
        count,
        prepared.loaded.cfg,
        backend,
        settings.external_data,
        stages,
    )
    name = path.name if report.accepted else f'model.{scheme.name}.refused.onnx'
    put_in_place(path, path.with_name(name))
    report.file.path = str(prepared.folder / name)
    return report


def _report(attempt: Attempt, prepared: Prepared, stages: Stages, path: Path) -> Report:
    settings, graph = prepared.settings, attempt.graph
    warnings = list(prepared.task.notes)
    if attempt.reason is not None and prepared.shape is None:
        height, width = attempt.samples[0].shape
        warnings.append(f'height and width are fixed at {height} x {width}: {attempt.reason}')
    if attempt.given_up is not None:
        warnings.append(f"convolutions are as the model has them: by Winograd's algorithm, {attempt.given_up}")
    for key in graph.never_fired:
        if key in settings.required:
            warnings.append(f"your rewriter '{key}' never fired: nothing called {', '.join(graph.targets[key])}")
    return Report(
        file=file_facts(graph.model, path),
        checks=attempt.verification.checks,
        rewriters=graph.fired,
        unfired=graph.never_fired,
        stage_times=dict(stages.times),
        versions=versions(),
        tolerance=prepared.task.tolerance,
        not_exercised=attempt.verification.not_exercised,
        warnings=warnings,
        backend=settings.backend.get('type', ''),
    )


def _draw(folder: Path, prepared: Prepared, attempt: Attempt, paths: Sequence[Path], backend: str) -> list[Path]:
    """The user's images, which come first among those compared."""
    task = prepared.task
    from .check.visualize import save_comparison

    drawn = []
    for sample, path, (reference, answer) in zip(attempt.samples, paths, attempt.verification.answers, strict=False):
        if answer is None:
            continue
        target = folder / f'compare_{path.stem}.png'
        if target in drawn:  # two images of one name in different folders
            target = folder / f'compare_{path.stem}_{len(drawn)}.png'
        image = sample.image if task.rescale else _shown(sample)
        pair = [task.data_sample(sample, value) for value in (reference, answer)]
        meta = prepared.loaded.dataset_meta
        save_comparison(target, image, *pair, meta, task.name, titles=('PyTorch', backend))
        drawn.append(target)
    return drawn


def _shown(sample: Sample) -> np.ndarray:
    """The image as the pipeline leaves it, for answers in its pixels."""
    image = sample.inputs.float().numpy().transpose(1, 2, 0)
    return np.ascontiguousarray(np.clip(image, 0, 255).astype(np.uint8))


def audit(config: str | Path, checkpoint: str | Path, image: str | Path, **options: Any) -> list[Branch]:
    """The branches of Python code on values that are left in a model with its rewriters in place.

    Each is frozen in a file as the traced image takes it, where the tracer does not notice.

    Args:
        config: see :func:`deploy`.
        checkpoint: see :func:`deploy`.
        image: one image file.
        **options: the other arguments of :func:`deploy`.

    Raises:
        DeployError: see :func:`deploy`; or torch is older than 2.9, or cannot follow the model.
    """
    from .export.allowed import allowed_lines
    from .export.draft import value_branches

    prepared = prepare(config, checkpoint, **options)
    sample = prepared.task.prepare(Path(image).name, check_image(image))
    rewriters = build_rewriters(prepared.settings.rewriters, REWRITERS)
    allowed = allowed_lines(prepared.settings.audit.get('allow', ()))
    return value_branches(prepared.task, sample, rewriters, allowed)


def benchmark(
    config: str | Path,
    checkpoint: str | Path,
    image: str | Path,
    *,
    onnx_file: str | Path | None = None,
    peers: Sequence[str | Path] = (),
    threads: int = 2,
    runs: int = 20,
    stages: Stages | None = None,
    **options: Any,
) -> tuple[Any, Path]:
    """Time a file beside PyTorch and the bare network, in one run, turn by turn.

    Args:
        config: see :func:`deploy`.
        checkpoint: see :func:`deploy`.
        image: one image file.
        onnx_file: the exported file; None deploys the model first.
        peers: other ONNX files with one image-sized input.
        threads: of PyTorch and of ONNX Runtime.
        runs: rounds that count.
        stages: shows and times the stages.
        **options: the other arguments of :func:`deploy`.

    Returns:
        The measurements, also written as ``benchmark.json`` and ``benchmark.png``, and the work dir they are in.

    Raises:
        DeployError: see :func:`deploy`; or the file does not take the image.
    """
    from .benchmark.plot import plot
    from .benchmark.run import benchmark as measure

    stages = stages or Stages()
    if onnx_file is None:
        onnx_file = deploy(config, checkpoint, image, stages=stages, **options).path
    with stages.stage('load'):
        prepared = prepare(config, checkpoint, **options)
        sample = prepared.task.prepare(Path(image).name, check_image(image))
    with stages.stage('benchmark', total=runs + 2) as step:
        result = measure(
            Path(prepared.loaded.cfg.filename).stem,
            prepared.task,
            sample,
            Path(onnx_file),
            prepared.settings.rewriters,
            threads,
            runs,
            [Path(peer) for peer in peers],
            step,
        )
    result.save(prepared.folder / 'benchmark.json')
    plot(result, prepared.folder / 'benchmark.png')
    return result, prepared.folder


def compare_formats(
    config: str | Path,
    checkpoint: str | Path,
    image: str | Path,
    onnx_file: str | Path,
    *,
    threads: int = 2,
    runs: int = 20,
    stages: Stages | None = None,
    **options: Any,
) -> Any:
    """Size, accuracy, time and memory of PyTorch, a file, and the less exact ones beside it, with each backend.

    Args:
        config: see :func:`deploy`.
        checkpoint: see :func:`deploy`.
        image: that is timed.
        onnx_file: the exact file.
        threads: of PyTorch and of each backend.
        runs: rounds that count.
        stages: shows and times the work.
        **options: ``deploy_cfg``, ``work_dir``, ``cfg_options`` and so on, see :func:`deploy`.

    Returns:
        :class:`mmdeploy_lite.benchmark.formats.Formats`, also written as ``formats.json`` into the work dir.

    Raises:
        DeployError: see :func:`deploy`; or a file does not take the image.
    """
    from .benchmark.formats import compare_formats as compare

    prepared = prepare(config, checkpoint, **options)
    sample = prepared.task.prepare(Path(image).name, check_image(image))
    result = compare(prepared.loaded.cfg, prepared.task, sample, Path(onnx_file), threads, runs, stages)
    result.save(prepared.folder / 'formats.json')
    return result


def evaluate(
    config: str | Path,
    checkpoint: str | Path,
    onnx_file: str | Path,
    *,
    pytorch: bool = True,
    stages: Stages | None = None,
    **options: Any,
) -> Evaluation:
    """Measure a model and its file on the config's own test dataset, with the config's own metrics.

    Args:
        config: see :func:`deploy`.
        checkpoint: see :func:`deploy`.
        onnx_file: the exported file.
        pytorch: measure the model, too; False for the file alone.
        stages: shows and times the stages.
        **options: ``deploy_cfg``, ``work_dir``, ``device``, ``cfg_options`` and so on, see :func:`deploy`.

    Returns:
        The metrics of both, also written as ``evaluation.json`` into the work dir. A file of one image size only is
        compared with PyTorch on images of that size.

    Raises:
        DeployError: see :func:`deploy`; no test dataset; or the file does not take its images.
    """
    from .evaluation import evaluate as measure
    from .evaluation import for_file

    stages = stages or Stages()
    with stages.stage('load'):
        prepared = prepare(config, checkpoint, **options)
        session = build_from(BACKENDS, prepared.settings.backend).load(onnx_file)
        task = for_file(prepared.task, session)
    result = measure(prepared.loaded.cfg, task, session, pytorch, stages)
    if session.metadata['checkpoint_sha256'] != prepared.loaded.checkpoint_sha256:
        result.warnings.append(f'{onnx_file} was not made from {checkpoint}: its checkpoint_sha256 is another')
    result.save(prepared.folder / 'evaluation.json')
    return result
