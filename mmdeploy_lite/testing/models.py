"""Models of the libraries' own configs with calibrated weights, and images that they find things in."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import DeployError
from ..loading import LoadedModel, build_model, load_config, use_scope
from ..rewriting import FunctionRewriter, RewriteContext
from ..tasks import BaseTask, Sample, TestPipeline, answering, find_test_pipeline, fix_shape, infer_task
from .calibrate import Calibration, calibrate
from .images import empty, scene
from .reference_edits import edit_config, edit_model
from .silence import distinct_scores, shift_classes, silence

SCALE = (384, 256)
"""(longer, shorter) side in pixels that images are resized to at most: large enough for every level of a pyramid to
matter.
"""


class UnfitModelError(DeployError):
    """Random weights that could not be made to answer as a test needs them to."""


@dataclass
class TestModel:
    """A calibrated model and how it is deployed.

    Attributes:
        task: holds the model and its test pipeline.
        loaded: the model as :func:`mmdeploy_lite.loading.build_model` returned it.
        calibration: what was done to its weights.
        steps: of the test pipeline, shrunk.
        edits: what PyTorch needed to run it, see :mod:`mmdeploy_lite.testing.reference_edits`.
    """

    __test__ = False  # pytest collects classes of this name otherwise

    task: BaseTask
    loaded: LoadedModel
    calibration: Calibration
    steps: list[dict[str, Any]]
    edits: tuple[str, ...] = ()

    def samples(self, images: Mapping[str, np.ndarray]) -> list[Sample]:
        """Images, by name, as the test pipeline leaves them."""
        return [self.task.prepare(name, image) for name, image in images.items()]

    def sample_at(self, name: str, image: np.ndarray, shape: tuple[int, int]) -> Sample:
        """An image that the test pipeline, its Resize and Pad changed for it, brings to ``shape`` (h, w)."""
        use_scope(self.task.codebase)
        task = copy.copy(self.task)
        task.pipeline = TestPipeline(fix_shape(self.steps, shape))
        return task.prepare(name, image)


def zoo_model(
    config: str,
    cfg_options: Mapping[str, Any] | None = None,
    *,
    scale: tuple[int, int] = SCALE,
    seed: int = 0,
    outputs: str | None = None,
    **task_options: Any,
) -> TestModel:
    """Build the model of a config, without downloads, and calibrate its weights.

    Args:
        config: a file or a name like ``mmdet::retinanet/retinanet_r18_fpn_1x_coco.py``.
        cfg_options: over the config, by dotted key.
        scale: see :func:`shrink_pipeline`.
        seed: of the weights.
        outputs: what the model answers; None for the task's default.
        **task_options: of :class:`mmdeploy_lite.tasks.BaseTask`: ``rescale``, ``dtype``, ``batch_size``.

    Raises:
        DeployError: the config cannot be read, or the model not built.
    """
    cfg = load_config(config, cfg_options)
    edits = edit_config(cfg)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # of what is not calibrated, such as query embeddings
        loaded = build_model(cfg, None)
    edits += edit_model(loaded.model)
    use_scope(loaded.scope)
    steps = shrink_pipeline(find_test_pipeline(cfg), scale)
    task = answering(infer_task(loaded.model), outputs)(loaded.model, TestPipeline(steps), **task_options)
    longer, shorter = scale
    images = [scene(1, shorter, longer), scene(2, shorter, longer), empty(shorter, longer), scene(3, shorter, longer)]
    if any(type(module).__name__ == 'MaskedConv2d' for module in loaded.model.modules()):  # takes no batch
        images = images[:1]
    samples = [task.prepare(str(index), image) for index, image in enumerate(images)]
    data = dict(inputs=[item.inputs for item in samples], data_samples=[item.data_sample for item in samples])
    data = loaded.model.data_preprocessor(data, False)
    calibration = calibrate(loaded.model, lambda: loaded.model.predict(data['inputs'], data['data_samples']), seed)
    return TestModel(task, loaded, calibration, steps, tuple(edits))


def shrink_pipeline(steps: Sequence[Mapping[str, Any]], scale: tuple[int, int]) -> list[dict[str, Any]]:
    """A test pipeline whose Resize and Pad are smaller; what they do stays the same.

    Args:
        steps: of the test pipeline; are not changed.
        scale: (longer, shorter) side in pixels; steps that make a square make it of the shorter one.
    """
    shrunk = []
    for step in steps:
        step = dict(step)
        kind = step['type'] if isinstance(step['type'], str) else step['type'].__name__
        if kind.endswith('Resize') and 'scale' in step:
            square = isinstance(step['scale'], int) or step['scale'][0] == step['scale'][1]
            step['scale'] = (scale[1], scale[1]) if square else scale
        if kind.endswith('Pad') and 'size' in step:
            step['size'] = (scale[1], scale[1]) if step['size'][0] == step['size'][1] else scale
        shrunk.append(step)
    return shrunk


def find_busy(
    model: TestModel, samples: Sequence[Sample], quiet: Sample | None, more_than: int = 20, distinct: int = 20
) -> Sample:
    """Shift a detector's class scores, in place, so that it finds nothing in one image and much in another.

    Both are asserted in PyTorch here, and that the scores of the many are not all the same: a comparison of nothing
    with nothing proves nothing.

    Args:
        model: a detector.
        samples: images to find much in.
        quiet: the image to find nothing in; None for a model that always answers as many (DETR).
        more_than: so many detections, and one more.
        distinct: so many of their scores must differ from each other.

    Returns:
        The one of ``samples`` with the most detections.

    Raises:
        UnfitModelError: it is not so.
    """
    task, threshold = model.task, score_threshold(model)
    if quiet is not None:
        if threshold is None:
            raise UnfitModelError('the test config has no score_thr: the model answers as much for every image')
        silence(task.model, lambda: task.test_step(quiet), threshold)
        # a cascade averages the logits of its stages: each may be below the threshold and the average not
        for attempt in range(10):
            if not (count := len(_scores(task, quiet))):
                break
            shift_classes(task.model, -0.25 * (attempt + 1))
        else:
            raise UnfitModelError(f'{quiet.name} still has {count} detections above {threshold:g}')
    for _ in range(8):
        scores = {sample.name: _scores(task, sample) for sample in samples}
        busy = max(samples, key=lambda sample: len(scores[sample.name]))
        if len(scores[busy.name]) > more_than and distinct_scores(scores[busy.name]) >= distinct:
            return busy
        # where class scores are multiplied by an objectness, they may be higher and the quiet image still be quiet
        shift_classes(task.model, 0.5)
        if quiet is not None and len(_scores(task, quiet)):
            break
    counts = {name: (len(values), distinct_scores(values)) for name, values in scores.items()}
    raise UnfitModelError(
        f'no image has more than {more_than} detections of {distinct} different scores, but {counts}; try another seed'
    )


def score_threshold(model: TestModel) -> float | None:
    """The threshold that final scores of a detector must pass; None where the test config has none, or nothing reads
    it, as for corners.
    """
    if hasattr(getattr(model.task.model, 'bbox_head', None), 'tl_heat'):
        return None
    cfg = getattr(model.task.model, 'test_cfg', None) or {}
    cfg = cfg.get('rcnn') or cfg
    return float(cfg['score_thr']) if cfg.get('score_thr') else None


def _scores(task: BaseTask, sample: Sample) -> np.ndarray:
    return task.test_step(sample).pred_instances.scores.float().cpu().numpy()


class _CountProposals(FunctionRewriter):
    """How many proposals reach a RoI head."""

    target = 'mmdet.models.roi_heads.base_roi_head.BaseRoIHead.predict'

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, origin: Callable, head: Any, x: Any, proposals: list[Any], *args: Any, **kwargs: Any) -> Any:
        self.count = len(proposals[0])
        return origin(head, x, proposals, *args, **kwargs)


def count_proposals(task: BaseTask, sample: Sample) -> int:
    """How many boxes a detector considers in an image.

    Returns:
        Of a two-stage detector the proposals, of another the candidates of NMS; 0 for one without either.
    """
    proposals = _CountProposals()
    with RewriteContext({'proposals': proposals}):
        calls = task.reference(sample)[1].nms_calls
    return proposals.count or (len(calls[-1].scores) if calls else 0)
