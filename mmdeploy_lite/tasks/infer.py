"""Which task a model is for."""

from __future__ import annotations

from torch import nn

from ..errors import UnsupportedError
from .base import BaseTask
from .detection import InstanceSegmentation, ObjectDetection
from .panoptic import PanopticSegmentation
from .raw import RawDetection
from .roi_masks import RoIMasks
from .scores import SegmentationLogits, SegmentationProbabilities
from .segmentation import SemanticSegmentation

# What a task can answer instead, by `outputs` of the deploy config; the first is what it answers by default.
OUTPUTS: dict[str, dict[str, type[BaseTask]]] = {
    'detection': dict(detections=ObjectDetection, raw=RawDetection),
    'instance_segmentation': dict(detections=InstanceSegmentation, roi_masks=RoIMasks),
    'panoptic': dict(panoptic_seg=PanopticSegmentation),
    'segmentation': dict(
        seg_map=SemanticSegmentation, seg_logits=SegmentationLogits, seg_probs=SegmentationProbabilities
    ),
}


def answering(task: type[BaseTask], outputs: str | None) -> type[BaseTask]:
    """The task that answers what ``outputs`` of the deploy config says; None for the task's default.

    Raises:
        UnsupportedError: the task cannot answer it.
    """
    if outputs is None:
        return task
    known = OUTPUTS.get(task.name, {})
    if outputs not in known:
        raise UnsupportedError(
            f"outputs '{outputs}' is nothing that {task.name} can answer; use {' or '.join(map(repr, known)) or None}"
        )
    return known[outputs]


def infer_task(model: nn.Module) -> type[BaseTask]:
    """The task of a built model, from its class and heads.

    Raises:
        UnsupportedError: neither a detector nor a segmentor of the supported kinds.
    """
    bases = _bases(model)
    name = type(model).__name__
    if 'BaseSegmentor' in bases:
        return SemanticSegmentation
    if 'BaseDetector' not in bases:
        raise UnsupportedError(f'{name} is neither a detector of mmdet nor a segmentor of mmseg')
    if bases & {'MultimodalDetector', 'GLIP', 'GroundingDINO'} or getattr(model, 'language_model', None) is not None:
        raise UnsupportedError(f'{name} needs a language model and a text prompt, which cannot be exported')
    if 'MaskFormer' in bases:
        return PanopticSegmentation if model.test_cfg.get('panoptic_on', True) else InstanceSegmentation
    if 'TwoStagePanopticSegmentor' in bases:
        return PanopticSegmentation
    if getattr(model, 'with_mask', False):
        return InstanceSegmentation
    if 'SingleStageInstanceSegmentor' in bases or 'RTMDetInsHead' in _bases(getattr(model, 'bbox_head', None)):
        return InstanceSegmentation
    return ObjectDetection


def _bases(module: nn.Module | None) -> set[str]:
    """Names of its classes that the libraries define."""
    return {base.__name__ for base in type(module).__mro__ if base.__module__.split('.')[0] in ('mmdet', 'mmseg')}
