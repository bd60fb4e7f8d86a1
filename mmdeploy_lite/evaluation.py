"""The config's own test: its dataset and metrics, once with PyTorch and once with the exported file."""

from __future__ import annotations

import contextlib
import io
import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import nn

from .errors import ConfigError
from .progress import Stages
from .tasks import BaseTask, Sample, answering, fix_shape

DIGITS = 1e-4
"""Metrics are equal to four digits; those above 1 are percentages."""


@dataclass
class Evaluation:
    """The metrics of both.

    Attributes:
        images: how many were tested.
        pytorch: metric to value; empty when PyTorch was not run.
        file: metric to value.
        shape: (h, w) that all images were brought to, because the file takes no other; else None.
        warnings: what to know before believing the numbers.
    """

    images: int
    pytorch: dict[str, float] = field(default_factory=dict)
    file: dict[str, float] = field(default_factory=dict)
    shape: tuple[int, int] | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def differing(self) -> list[str]:
        """Metrics that are not equal to four digits."""
        return [name for name, value in self.pytorch.items() if not _equal(value, self.file.get(name, math.nan))]

    @property
    def equal(self) -> bool:
        """All metrics, to four digits; also when PyTorch was not run."""
        return not self.differing

    def save(self, path: Path) -> None:
        """Write it as json."""
        path.write_text(json.dumps({**vars(self), 'equal': self.equal}, indent=1) + '\n', encoding='utf-8')


def _equal(one: float, other: float) -> bool:
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return abs(one - other) <= DIGITS * (100 if max(abs(one), abs(other)) > 1 else 1) * (1 + 1e-6)


class FileModel(BaseModel):
    """An exported file in the place of a model: mmengine's test loop calls it, and no PyTorch runs.

    Args:
        task: that the file was exported for.
        session: the loaded file.
    """

    def __init__(self, task: BaseTask, session: Any) -> None:
        super().__init__()
        # not a submodule: neither moved to a device nor counted
        object.__setattr__(self, 'task', task)
        self.session = session

    def forward(self, inputs: Any, data_samples: Any = None, mode: str = 'predict') -> Any:
        """Only the test loop's ``test_step`` makes sense for a file."""
        raise NotImplementedError('an exported file has a test_step only')

    def test_step(self, data: Mapping[str, Any]) -> list[Any]:
        """Answer a batch.

        Args:
            data: ``inputs``, a list of (C, H, W) as the pipeline leaves them, and ``data_samples``.

        Returns:
            The data samples with predictions.
        """
        answered = []
        for inputs, data_sample in zip(data['inputs'], data['data_samples'], strict=True):
            image = np.empty((*data_sample.metainfo['ori_shape'][:2], 0), np.uint8)  # only its size is asked for
            sample = Sample(str(data_sample.metainfo.get('img_path', '')), image, inputs, data_sample)
            outputs = self.session.run(self.task.feeds([sample] * self.task.batch_size))
            predicted = self.task.data_sample(sample, self.task.answer(outputs))
            for name in ('pred_instances', 'pred_sem_seg', 'pred_panoptic_seg'):
                if name in predicted:
                    setattr(data_sample, name, getattr(predicted, name))
            answered.append(data_sample)
        return answered


def for_file(task: BaseTask, session: Any) -> BaseTask:
    """The task with the settings that a file was exported with.

    Raises:
        ConfigError: the file is for another task, or its answers are not in original pixels.
    """
    metadata = session.metadata
    if metadata['task'] != task.name:
        raise ConfigError(
            f'the file is for {metadata["task"]}, the config for {task.name}; they do not belong together'
        )
    if not metadata['rescale']:
        raise ConfigError(
            'the file was exported with rescale=False and answers in pixels of its input; the metrics are about'
            ' original pixels. Export it with rescale=True to measure it'
        )
    kind = answering(type(task), metadata.get('answers'))
    if not kind.runtime_reads:
        raise ConfigError(f"the file answers '{metadata['answers']}', which the metrics cannot take")
    batch = session.input_shapes['image'][0]
    return kind(
        task.model,
        task.pipeline,
        dtype=metadata['dtype'],
        batch_size=batch if isinstance(batch, int) else None,
        tolerance=task.tolerance,
        preprocess='none' if metadata.get('input') == 'preprocessed' else 'graph',
    )


def evaluate(
    cfg: Config,
    task: BaseTask,
    session: Any,
    pytorch: bool = True,
    stages: Stages | None = None,
    name: str = 'file',
) -> Evaluation:
    """Measure the model and its file on the test dataset of the config.

    Args:
        cfg: the model config, with ``test_dataloader`` and ``test_evaluator``.
        task: with the model.
        session: the loaded file.
        pytorch: measure the model, too.
        stages: shows and times both.
        name: of the file, in what is shown.

    Raises:
        ConfigError: the config has no test dataset or metrics, or the dataset is not there.
        BackendError: the file does not take the dataset's images.
    """
    shape = _fixed_shape(session)
    loader, evaluator = _test_parts(cfg)
    if shape is not None:
        dataset = _with_pipeline(loader['dataset'])
        dataset['pipeline'] = fix_shape(dataset['pipeline'], shape)
    result = Evaluation(0, shape=shape)
    sides = {'PyTorch': (result.pytorch, task.model)} if pytorch else {}
    sides[name] = (result.file, FileModel(task, session))
    for side, (metrics, model) in sides.items():
        with tempfile.TemporaryDirectory() as folder:
            with contextlib.redirect_stdout(io.StringIO()):
                runner = _runner(model, cfg, loader, evaluator, folder)
            result.images = len(runner.test_dataloader.dataset)
            with (stages or Stages()).stage(side, total=len(runner.test_dataloader)) as step:
                runner.register_hook(_Steps(step))
                with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its own tables
                    found = runner.test()
            metrics.update({metric: float(value) for metric, value in found.items()})
    return result


def _fixed_shape(session: Any) -> tuple[int, int] | None:
    sizes = session.input_shapes['image'][-2:]
    return tuple(sizes) if all(isinstance(size, int) for size in sizes) else None


def _test_parts(cfg: Config) -> tuple[Any, Any]:
    """Copies of the dataloader and of the metrics' config."""
    missing = [name for name in ('test_dataloader', 'test_evaluator') if not cfg.get(name)]
    if missing:
        raise ConfigError(f'the config has no {" and no ".join(missing)}; add what the model was tested with')
    cfg = cfg.copy()
    return cfg.test_dataloader, cfg.test_evaluator


def _with_pipeline(dataset: Any) -> Any:
    """The dataset that has the pipeline, inside its wrappers.

    Raises:
        ConfigError: none has, or several have.
    """
    while 'pipeline' not in dataset:
        inner = dataset.get('dataset') or dataset.get('datasets')
        if isinstance(inner, Sequence) and len(inner) == 1:
            inner = inner[0]
        if not isinstance(inner, Mapping):
            raise ConfigError(
                'the file takes one image size only, and the test dataset has no single pipeline that could make it;'
                ' export with dynamic height and width, or test on a dataset with one pipeline'
            )
        dataset = inner
    return dataset


class _Steps(Hook):
    """Tells how far the loop is."""

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step

    def after_test_iter(self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        self._step()


def _runner(model: nn.Module, cfg: Config, loader: Any, evaluator: Any, folder: str) -> Runner:
    """mmengine's runner with the test loop built.

    Args:
        folder: of its log, which nobody reads.

    Raises:
        ConfigError: the dataset is not there.
    """
    runner = Runner(
        model=model,
        work_dir=folder,
        test_dataloader=loader,
        test_evaluator=evaluator,
        test_cfg=dict(type='TestLoop'),
        default_scope=cfg.get('default_scope', 'mmengine'),
        log_level='ERROR',
        experiment_name=f'evaluation_{id(model)}_{time.time_ns()}',  # each runner needs a name of its own
    )
    try:
        runner.test_loop  # noqa: B018  (built on first use)
    except FileNotFoundError as error:
        raise ConfigError(
            f'the test dataset of the config is not there: {error}. Get it, or name another with --cfg-options'
            ' test_dataloader.dataset.data_root=DIR (and test_evaluator.ann_file=FILE)'
        ) from error
    return runner
