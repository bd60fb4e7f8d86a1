"""Instance segmentation whose masks are pasted by the program and not by the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..check.answers import Detections
from ..check.comparison import Comparison
from ..check.tolerance import Tolerance
from ..errors import UnsupportedError
from ..registry import TASKS
from ..runtime.masks import paste_masks
from .base import Sample
from .detection import InstanceSegmentation


@dataclass
class RoIDetections(Detections):
    """Detections whose masks are not pasted yet.

    Attributes:
        roi_masks: (K, mh, mw) float32 probabilities over the boxes.
    """

    roi_masks: np.ndarray | None = None


@TASKS.register_module()
class RoIMasks(InstanceSegmentation):
    """Boxes, labels, scores and the mask head's own small mask for each: less to compute and to carry.

    Raises:
        UnsupportedError: the model's masks are none of boxes.
    """

    outputs = 'roi_masks'
    needs_ori_shape = False
    pastes = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        from mmdet.models import FCNMaskHead

        heads = getattr(getattr(self.model, 'roi_head', None), 'mask_head', None)
        last = heads[-1] if hasattr(heads, '__len__') else heads
        if not isinstance(last, FCNMaskHead):
            raise UnsupportedError(
                f"outputs='roi_masks' is for mask heads over boxes (FCNMaskHead); {type(self.model).__name__} has masks"
                " of the whole image. Use outputs='detections'"
            )
        self._threshold = float(self.model.test_cfg.rcnn.mask_thr_binary)

    @property
    def threshold(self) -> float:
        return self._threshold

    def output_shapes(self) -> dict[str, tuple[int | str, ...]]:
        shapes = super().output_shapes()
        del shapes['masks']
        return {**shapes, 'roi_masks': (self.batch_size, 'num_dets', 'roi_height', 'roi_width')}

    def answer(self, outputs: Mapping[str, np.ndarray], index: int = 0) -> RoIDetections:
        count = int(outputs['num_dets'][index])
        dets = outputs['dets'][index, :count]
        masks = outputs['roi_masks'][index, :count]
        return RoIDetections(dets[:, :4], dets[:, 4], outputs['labels'][index, :count], None, masks)

    def compare(
        self, sample: Sample, reference: Detections, answer: Detections, tolerance: Tolerance, evidence: Any
    ) -> Comparison:
        pair = self._pasted(sample, reference), self._pasted(sample, answer)
        return super().compare(sample, *pair, tolerance, evidence)

    def data_sample(self, sample: Sample, answer: Detections) -> Any:
        return super().data_sample(sample, self._pasted(sample, answer))

    def _pasted(self, sample: Sample, answer: Detections) -> Detections:
        if not isinstance(answer, RoIDetections):
            return answer
        shape = sample.image.shape[:2] if self.rescale else sample.shape
        masks = paste_masks(answer.roi_masks, answer.bboxes, shape, self.threshold)
        return Detections(answer.bboxes, answer.scores, answer.labels, masks)
