"""Which task a model is for."""

from __future__ import annotations

from torch import nn

from ..errors import UnsupportedError
from .base import BaseTask
from .detection import InstanceSegmentation, ObjectDetection
from .segmentation import SemanticSegmentation


def infer_task(model: nn.Module) -> type[BaseTask]:
    """The task of a built model, from its class and heads.

    Raises:
        UnsupportedError: neither a detector nor a segmentor of the supported kinds.
    """
    bases = {base.__name__ for base in type(model).__mro__ if base.__module__.split('.')[0] in ('mmdet', 'mmseg')}
    name = type(model).__name__
    if 'BaseSegmentor' in bases:
        return SemanticSegmentation
    if 'BaseDetector' not in bases:
        raise UnsupportedError(f'{name} is neither a detector of mmdet nor a segmentor of mmseg')
    if bases & {'TwoStagePanopticSegmentor', 'MaskFormer'}:
        raise UnsupportedError(f'{name} answers panoptic or query masks, which cannot be exported yet')
    if bases & {'MultimodalDetector', 'GLIP', 'GroundingDINO'} or getattr(model, 'language_model', None) is not None:
        raise UnsupportedError(f'{name} needs a language model and a text prompt, which cannot be exported')
    if getattr(model, 'with_mask', False):
        return InstanceSegmentation
    if bases & {'SingleStageInstanceSegmentor'}:
        return InstanceSegmentation
    return ObjectDetection
