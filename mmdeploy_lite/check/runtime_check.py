"""The runtime on the user's own image files: what ships is what was checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import DeployError, UnsupportedError
from ..runtime import Model, check_steps
from ..runtime.pipeline import cannot_reproduce
from ..runtime.results import INSTANCE_OFFSET
from ..runtime.results import PanopticMap as RuntimePanopticMap
from ..runtime.results import SegMap as RuntimeSegMap
from .answers import Detections, PanopticMap, RawTensors, SegMap
from .comparison import Comparison
from .report import Check

_LIBRARIES = ('mmcv', 'mmdet', 'mmseg', 'mmengine')


def check_pipeline(task: Any) -> None:
    """Whether the runtime can do what the task's test pipeline does.

    Args:
        task: a :class:`mmdeploy_lite.tasks.BaseTask`.

    Raises:
        UnsupportedError: it cannot; names the step.
    """
    check_steps(task.pipeline.steps, task.codebase)
    for transform in task.pipeline.transforms:
        cls = type(transform)
        if cls.__module__.split('.')[0] not in _LIBRARIES:  # registered under a name of theirs
            where = f'{cls.__module__}.{cls.__name__}'
            raise UnsupportedError(cannot_reproduce(cls.__name__, f"is {where}, not the library's own"))


def check_runtime(
    path: Path,
    task: Any,
    samples: Sequence[Any],
    images: Sequence[Path],
    providers: Sequence[str] = ('CPUExecutionProvider',),
    threads: int | None = None,
    backend: str = 'onnxruntime',
) -> tuple[list[Check], list[str]]:
    """Run a file on image files as production will; compare with the same file on what the library's pipeline made.

    The file itself has been compared with PyTorch; what can differ here is the pipeline, and the reading of the answer.

    Args:
        path: the exported file.
        task: a :class:`mmdeploy_lite.tasks.BaseTask`.
        samples: the images as the library's pipeline left them.
        images: their files.
        providers: of ONNX Runtime.
        threads: of one run.
        backend: see :class:`mmdeploy_lite.runtime.Model`.

    Returns:
        A comparison per image, and a line for each image that the file does not take.
    """
    checks, skipped = [], []
    model: Model | None = None
    for sample, image in zip(samples, images, strict=True):
        try:
            model = model or Model(path, providers, threads, backend)
            if not model.takes(sample.shape):
                height, width = sample.shape
                skipped.append(f'the runtime on {sample.name}: the pipeline makes {height} x {width} of it')
                continue
            session = model.session
            reference = task.answer(session.run(task.feeds([sample] * task.batch_size)))
            # both ran the same file on one image: no tie can fall differently, so nothing is excused
            comparison = task.compare(sample, reference, _answer(task, model(image)), task.tolerance, None)
        except DeployError as error:
            comparison = Comparison(kind=task.kind, verdict='unequal', reasons=[str(error)])
        checks.append(Check(sample.name, sample.image.shape[:2], 'runtime', comparison))
    return checks, skipped


def _answer(task: Any, result: Any) -> Detections | SegMap | RawTensors:
    if isinstance(result, RuntimePanopticMap):
        return PanopticMap(result.seg_map + result.numbers * INSTANCE_OFFSET)
    if isinstance(result, RuntimeSegMap):
        if result.scores is not None:
            return RawTensors({task.outputs: result.scores})
        return SegMap(result.seg_map)
    return Detections(result.bboxes, result.scores, result.labels, result.masks)
