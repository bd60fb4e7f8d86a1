"""From what a user names to a task that can be exported, benchmarked or tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config

from .check.tolerance import Tolerance
from .deploy_config import DeployConfig, check_shape, deploy_section, plain_dict, resolve_deploy_config, split_options
from .loading import LoadedModel, build_model, load_config, read_config
from .tasks import BaseTask, TestPipeline, answering, find_test_pipeline, fix_shape, infer_task
from .workdir import open_work_dir


@dataclass
class Prepared:
    """A task with all that belongs to it.

    Attributes:
        task: with the model and its test pipeline.
        loaded: the model and where it came from.
        settings: of the deployment.
        steps: the test pipeline as the config has it.
        shape: (h, w) that was asked for, or None.
        folder: the work dir.
    """

    task: BaseTask
    loaded: LoadedModel
    settings: DeployConfig
    steps: list[dict[str, Any]]
    shape: tuple[int, int] | None
    folder: Path


def prepare(
    config: str | Path,
    checkpoint: str | Path | None,
    *,
    deploy_cfg: str | Path | Mapping[str, Any] | None = None,
    work_dir: str | Path | None = None,
    shape: Sequence[int] | None = None,
    device: str = 'cpu',
    cfg_options: Mapping[str, Any] | None = None,
    allow_mismatch: bool = False,
    unsafe_checkpoint: bool = False,
) -> Prepared:
    """Load the model, infer its task and merge its deploy config.

    Args:
        config: see :func:`mmdeploy_lite.apis.deploy`, as for the others.
        checkpoint: None for a model with its initial weights.

    Raises:
        DeployError: what is wrong with the input.
    """
    model_options, deploy_options = split_options(cfg_options)
    shape = check_shape(shape)
    cfg = load_config(config, model_options)
    folder = open_work_dir(work_dir, cfg)
    loaded = build_model(cfg, checkpoint, device, allow_mismatch, unsafe_checkpoint)
    task_type = infer_task(loaded.model)
    settings = merge_settings(task_type, deploy_cfg, cfg, deploy_options)
    shape = shape or check_shape(settings.input.get('shape'))
    steps = find_test_pipeline(cfg)
    task = answering(task_type, settings.outputs)(
        loaded.model,
        TestPipeline(fix_shape(steps, shape) if shape else steps),
        rescale=settings.rescale,
        dtype=settings.input.get('dtype', 'float32'),
        batch_size=settings.input.get('batch_size', 1),
        tolerance=Tolerance.from_config(settings.tolerance),
        preprocess=settings.input.get('preprocess', 'graph'),
    )
    return Prepared(task, loaded, settings, steps, shape, folder)


def merge_settings(
    task: type[BaseTask],
    deploy_cfg: str | Path | Mapping[str, Any] | None,
    cfg: Config,
    options: Mapping[str, Any],
) -> DeployConfig:
    """The deploy config of the four places: the task's default, ``deploy_cfg``, ``deploy`` of the model config, the
    options.
    """
    default = deploy_section(read_config(f'mmdeploy_lite::{task.default_deploy_cfg}'), task.default_deploy_cfg)
    if isinstance(deploy_cfg, (str, Path)):
        layer = deploy_section(read_config(deploy_cfg), str(deploy_cfg))
    else:
        layer = plain_dict(deploy_cfg)
    return resolve_deploy_config(default, layer, plain_dict(cfg.get('deploy')), options)
