"""The project in Python: the same as the command line, and no process is started."""

from __future__ import annotations

import copy
import hashlib
import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
from mmengine.config import Config

from . import __version__
from .check.images import other_sizes, variants
from .check.report import FileFacts, Report
from .check.tolerance import Tolerance
from .check.verify import Verification, verify
from .deploy_config import DeployConfig, check_shape, deploy_section, plain_dict, resolve_deploy_config, split_options
from .errors import AuditError, ConfigError, WorkDirError
from .export.allowed import allowed_lines
from .export.build import BuiltGraph, build_graph
from .export.metadata import plain, write_metadata
from .loading import LoadedModel, build_model, check_image, load_config, read_config
from .progress import Stages
from .registry import BACKENDS, EXPORTERS, REWRITERS
from .rewriting import build_rewriters
from .tasks import BaseTask, Sample, TestPipeline, find_test_pipeline, fix_shape, infer_task


@dataclass
class DeployResult:
    """What a deployment made.

    Attributes:
        path: the file: ``model.onnx``, or ``model.unequal.onnx`` where it is not equal.
        report: also saved as ``report.json``.
        pictures: PyTorch beside the backend, one per image given.
        task: that was inferred.
    """

    path: Path
    report: Report
    pictures: list[Path]
    task: BaseTask

    @property
    def equal(self) -> bool:
        """The file answers what ``model.predict`` answers."""
        return self.report.equal


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
    """Export a model as one ONNX file and compare the file with PyTorch.

    Args:
        config: a file, or a name like ``mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py``.
        checkpoint: the trained weights.
        images: one or more image files. The first is traced; all are compared, and what can be made of the first.
        deploy_cfg: a deploy config: file, name, or its ``deploy`` dict; None takes the task's default.
        work_dir: where ``model.onnx``, ``report.json`` and ``compare_<image>.png`` go; None for ``work_dirs/<config name>``.
        shape: (h, w) of the file's ``image`` in pixels, fixed in the graph; None keeps it dynamic where the model allows.
        device: that PyTorch runs on.
        cfg_options: over the config, by dotted key; ``deploy....`` goes over the deploy config.
        allow_mismatch: go on with a checkpoint that does not fit the model.
        unsafe_checkpoint: unpickle whatever the checkpoint holds: it can run any code.
        stages: shows and times the stages.

    Returns:
        The file's path and the report.

    Raises:
        DeployError: what is wrong with the input, or cannot be exported. ``model.onnx`` of an earlier run stays as it was.
    """
    stages = stages or Stages()
    model_options, deploy_options = split_options(cfg_options)
    shape = check_shape(shape)
    paths = [Path(path) for path in ([images] if isinstance(images, (str, Path)) else images)]
    if not paths:
        raise ConfigError('no image given; the model is traced and compared on at least one')
    with stages.stage('load'):
        pictures = [check_image(path) for path in paths]
        cfg = load_config(config, model_options)
        folder = _work_dir(work_dir, cfg)
        loaded = build_model(cfg, checkpoint, device, allow_mismatch, unsafe_checkpoint)
        task_type = infer_task(loaded.model)
        settings = _settings(task_type, deploy_cfg, cfg, deploy_options)
        shape = shape or check_shape(settings.input.get('shape'))
        steps = find_test_pipeline(cfg)
        task = task_type(
            loaded.model,
            TestPipeline(fix_shape(steps, shape) if shape else steps),
            rescale=settings.rescale,
            dtype=settings.input.get('dtype', 'float32'),
            batch_size=settings.input.get('batch_size', 1),
            tolerance=Tolerance.from_config(settings.tolerance),
        )
    with stages.stage('prepare'):
        named = list(zip([path.name for path in paths], pictures, strict=True))
        samples = _samples(task, named)
    warnings: list[str] = []
    reason = f'exported with --shape {shape[0]} {shape[1]}' if shape else task.static_reason()
    with _temporary(folder) as temporary:
        outcome = None
        if reason is None:
            outcome, reason = _try_dynamic(task, samples, steps, settings, loaded, temporary, stages)
        if outcome is None:
            if not shape:
                warnings.append(f'height and width are fixed at {samples[0].shape[0]} x {samples[0].shape[1]}: {reason}')
            fixed = _of_one_size(task, samples)
            outcome = _attempt(task, fixed, settings, loaded, temporary, stages, reason)
        graph, verification, session, compared = outcome
        report = _report(graph, verification, settings, stages, warnings, temporary, task, loaded)
        path = folder / ('model.onnx' if report.equal else 'model.unequal.onnx')
        report.file.path = str(path)
        with stages.stage('write'):
            _replace(temporary, path)
            if report.equal:
                folder.joinpath('model.unequal.onnx').unlink(missing_ok=True)
            drawn = _draw(folder, task, compared[: len(paths)], verification, loaded, paths)
        report.stage_times = dict(stages.times)
        report.save(folder / 'report.json')
    return DeployResult(path, report, drawn, task)


def _settings(
    task: type[BaseTask],
    deploy_cfg: str | Path | Mapping[str, Any] | None,
    cfg: Config,
    options: Mapping[str, Any],
) -> DeployConfig:
    default = deploy_section(read_config(f'mmdeploy_lite::{task.default_deploy_cfg}'), task.default_deploy_cfg)
    if isinstance(deploy_cfg, (str, Path)):
        layer = deploy_section(read_config(deploy_cfg), str(deploy_cfg))
    else:
        layer = plain_dict(deploy_cfg)
    return resolve_deploy_config(default, layer, plain_dict(cfg.get('deploy')), options)


def _samples(task: BaseTask, named: Sequence[tuple[str, np.ndarray]]) -> list[Sample]:
    """The user's images, then what is made of the first."""
    name, image = named[0]
    return [task.prepare(*item) for item in [*named, *variants(name, image)]]


def _of_one_size(task: BaseTask, samples: Sequence[Sample]) -> list[Sample]:
    """For a file of fixed size: images that come out differently are resized to the first one's original size."""
    height, width = samples[0].image.shape[:2]
    return [
        sample
        if sample.shape == samples[0].shape
        else task.prepare(f'{sample.name} (as {width}x{height})', cv2.resize(sample.image, (width, height)))
        for sample in samples
    ]


def _at_other_sizes(task: BaseTask, sample: Sample, steps: Sequence[Mapping[str, Any]]) -> list[Sample]:
    """The first image at other sizes of ``image``, those that PyTorch itself can run."""
    samples = []
    for shape in other_sizes(sample.shape):
        resized = copy.copy(task)
        resized.pipeline = TestPipeline(fix_shape(steps, shape))
        candidate = resized.prepare(f'{sample.name} (at {shape[1]}x{shape[0]})', sample.image)
        try:
            task.test_step(candidate)
        except (RuntimeError, AssertionError, ValueError):
            continue
        samples.append(candidate)
    return samples


_Outcome = tuple[BuiltGraph, Verification, Any, list[Sample]]


def _try_dynamic(
    task: BaseTask,
    samples: list[Sample],
    steps: Sequence[Mapping[str, Any]],
    settings: DeployConfig,
    loaded: LoadedModel,
    temporary: Path,
    stages: Stages,
) -> tuple[_Outcome | None, str | None]:
    """A file of any height and width, or None and the reason why the size has to be fixed."""
    others = _at_other_sizes(task, samples[0], steps)
    if not others:
        return None, 'the model itself runs at no other size'
    try:
        outcome = _attempt(task, [*samples, *others], settings, loaded, temporary, stages, None)
    except AuditError as error:
        return None, str(error).splitlines()[1].strip(' -')
    if outcome[1].equal:
        return outcome, None
    bad = next(check for check in outcome[1].checks if not check.comparison.equal)
    same = all(
        check.comparison.equal
        for check, sample in zip(outcome[1].checks, outcome[3], strict=True)
        if sample.shape == samples[0].shape
    )
    if not same:
        return outcome, None  # not a matter of size
    return None, f'with a dynamic size {bad.image} is {bad.comparison.verdict}: {(bad.comparison.reasons or ["no reason"])[0]}'


def _attempt(
    task: BaseTask,
    samples: list[Sample],
    settings: DeployConfig,
    loaded: LoadedModel,
    temporary: Path,
    stages: Stages,
    reason: str | None,
) -> _Outcome:
    """Export, load and compare once. ``reason`` says why the size is fixed; None for a dynamic size."""
    rewriters = build_rewriters(settings.rewriters, REWRITERS)
    dynamic = reason is None
    same_size = [sample for sample in samples if sample.shape == samples[0].shape]
    with stages.stage('export', note='height and width dynamic' if dynamic else 'height and width fixed'):
        graph = build_graph(
            task,
            [*same_size[: task.batch_size], *same_size[-task.batch_size :]],
            _build(EXPORTERS, settings.exporter),
            rewriters,
            settings.required,
            dynamic,
            allowed_lines(settings.audit.get('allow', ())),
            settings.optimize,
        )
        write_metadata(graph.model, _describe(task, settings, loaded, samples[0], reason))
        _save(graph.model, temporary)
    session = _build(BACKENDS, settings.backend).load(temporary)
    with stages.stage('check', total=len(samples)) as step:
        found = verify(task, session, samples, task.tolerance, dynamic, step)
    return graph, found, session, samples


def _build(registry: Any, config: Mapping[str, Any]) -> Any:
    for location in registry._locations:
        importlib.import_module(location)
    config = dict(config)
    kind = config.pop('type', None)
    cls = registry.get(kind) if isinstance(kind, str) else None
    if cls is None:
        known = ', '.join(sorted(registry.module_dict))
        raise ConfigError(f"'{kind}' is not in the {registry.name} registry; known are {known}. Add your own with custom_imports")
    try:
        return cls(**config)
    except TypeError as error:
        raise ConfigError(f'{kind} cannot take {config}: {error}') from error


def _describe(
    task: BaseTask, settings: DeployConfig, loaded: LoadedModel, sample: Sample, reason: str | None
) -> dict[str, Any]:
    """The file's metadata: what a runtime needs to know, and what it was made from."""
    meta = loaded.dataset_meta or {}
    height, width = sample.shape
    shapes: dict[str, Any] = {'dynamic': reason is None}
    if reason is not None:
        shapes.update(height=height, width=width, reason=f'the size is fixed: {reason}')
    return {
        'task': task.name,
        'codebase': task.codebase,
        'classes': list(meta.get('classes') or []),
        'palette': plain(meta.get('palette') or []),
        'pipeline': plain(task.pipeline.steps),
        'preprocess': plain(task.preprocess_spec.to_dict()),
        'inputs': task.input_names,
        'outputs': {name: list(dims) for name, dims in task.output_shapes().items()},
        'rescale': task.rescale,
        'dtype': task.dtype,
        'shapes': shapes,
        'test_cfg': plain(plain_dict(dict(getattr(task.model, 'test_cfg', None) or {}))),
        'versions': _versions(),
        'config_sha256': hashlib.sha256(loaded.cfg.pretty_text.encode()).hexdigest(),
        'checkpoint_sha256': loaded.checkpoint_sha256,
    }


def _versions() -> dict[str, str]:
    found = {'mmdeploy_lite': __version__}
    for name in ('torch', 'onnx', 'onnxruntime', 'mmengine', 'mmcv', 'mmdet', 'mmseg', 'numpy'):
        try:
            found[name] = importlib.import_module(name).__version__
        except ImportError:
            continue
    return found


def _report(
    graph: BuiltGraph,
    verification: Verification,
    settings: DeployConfig,
    stages: Stages,
    warnings: list[str],
    path: Path,
    task: BaseTask,
    loaded: LoadedModel,
) -> Report:
    unfired = [key for key in graph.never_fired if key in settings.required]
    warnings = [
        *warnings,
        *(
            f"your rewriter '{key}' never fired: nothing called {', '.join(graph.targets[key])}"
            for key in unfired
        ),
    ]
    return Report(
        file=_facts(graph.model, path),
        checks=verification.checks,
        rewriters=graph.fired,
        unfired=graph.never_fired,
        stage_times=dict(stages.times),
        versions=_versions(),
        tolerance=task.tolerance,
        not_exercised=verification.not_exercised,
        warnings=warnings,
        backend=settings.backend.get('type', ''),
    )


def _facts(model: onnx.ModelProto, path: Path) -> FileFacts:
    def values(entries: Any) -> list[dict[str, Any]]:
        return [
            {
                'name': entry.name,
                'dtype': np.dtype(onnx.helper.tensor_dtype_to_np_dtype(entry.type.tensor_type.elem_type)).name,
                'shape': [dim.dim_param or dim.dim_value for dim in entry.type.tensor_type.shape.dim],
            }
            for entry in entries
        ]

    opset = next(entry.version for entry in model.opset_import if entry.domain in ('', 'ai.onnx'))
    return FileFacts(
        path=str(path),
        bytes=path.stat().st_size,
        inputs=values(model.graph.input),
        outputs=values(model.graph.output),
        opset=opset,
        nodes=len(model.graph.node),
    )


def _draw(
    folder: Path,
    task: BaseTask,
    samples: Sequence[Sample],
    verification: Verification,
    loaded: LoadedModel,
    paths: Sequence[Path],
) -> list[Path]:
    from .check.visualize import save_comparison

    drawn = []
    for sample, path, (reference, answer) in zip(samples, paths, verification.answers, strict=False):
        if answer is None:
            continue
        target = folder / f'compare_{path.stem}.png'
        if target in drawn:  # two images of one name in different folders
            target = folder / f'compare_{path.stem}_{len(drawn)}.png'
        image = sample.image if task.rescale else _shown(sample)
        pair = [task.data_sample(sample, value) for value in (reference, answer)]
        save_comparison(target, image, *pair, loaded.dataset_meta, task.name)
        drawn.append(target)
    return drawn


def _shown(sample: Sample) -> np.ndarray:
    """The image as the pipeline leaves it, for answers in its pixels."""
    image = sample.inputs.float().numpy().transpose(1, 2, 0)
    return np.ascontiguousarray(np.clip(image, 0, 255).astype(np.uint8))


def _work_dir(work_dir: str | Path | None, cfg: Config) -> Path:
    folder = Path(work_dir) if work_dir is not None else Path('work_dirs', Path(cfg.filename).stem)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f'.writable.{os.getpid()}'
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise WorkDirError(f'the work dir {folder} cannot be written: {error.strerror}; choose another with --work-dir') from error
    return folder


class _temporary:
    """A name for the file while it is not known to be equal; gone afterwards, whatever happens."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f'.model.{os.getpid()}.onnx'

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *exc_info: object) -> None:
        self.path.unlink(missing_ok=True)


def _save(model: onnx.ModelProto, path: Path) -> None:
    try:
        path.write_bytes(model.SerializeToString(deterministic=True))
    except OSError as error:
        raise WorkDirError(f'{path} cannot be written: {error.strerror}') from error


def _replace(source: Path, target: Path) -> None:
    try:
        os.replace(source, target)
    except OSError as error:
        raise WorkDirError(f'{target} cannot be written: {error.strerror}') from error
