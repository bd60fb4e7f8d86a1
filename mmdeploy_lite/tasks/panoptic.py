"""Panoptic segmentation with mmdet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..check.answers import PanopticMap, SegEvidence
from ..check.compare import compare_seg_map
from ..check.comparison import Comparison
from ..check.tolerance import Tolerance
from ..registry import TASKS
from ..rewriting import FunctionRewriter, RewriteContext
from .base import BaseTask, Sample
from .detection import DetectionWrapper, has_boxes
from .evidence import record_evidence


class PanopticWrapper(DetectionWrapper):
    """``predict`` of a panoptic model as a function of the file's inputs."""

    def forward(self, image: Tensor, *extra: Tensor) -> Tensor:
        """Predict.

        Args:
            image: (N, C, H, W) as the test pipeline leaves it.
            *extra: see :class:`~mmdeploy_lite.tasks.detection.DetectionWrapper`.

        Returns:
            ``panoptic_seg`` (N, h, w) int64.
        """
        inputs, samples = self.batch(image, extra)
        results = self.model.predict(inputs, samples, rescale=self.rescale)
        return torch.cat([result.pred_panoptic_seg.sem_seg for result in results]).long()


class _RecordQueries(FunctionRewriter):
    """Keeps where the two best queries, or a low score's threshold, leave a pixel undecided."""

    target = (
        'mmdet.models.seg_heads.panoptic_fusion_heads.maskformer_fusion_head.MaskFormerFusionHead.panoptic_postprocess'
    )

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance
        self.undecided: np.ndarray | None = None

    def __call__(self, origin: Callable, head: Any, mask_cls: Tensor, mask_pred: Tensor) -> Any:
        scores, labels = mask_cls.softmax(-1).max(-1)
        kept = labels.ne(head.num_classes) & (scores > head.test_cfg.get('object_mask_thr', 0.8))
        masks = mask_pred.sigmoid()[kept]
        undecided = masks.new_zeros(mask_pred.shape[1:], dtype=torch.bool)
        if len(masks) > 1:
            best = (scores[kept][:, None, None] * masks).topk(2, dim=0)[0]
            undecided |= best[0] - best[1] <= self.tolerance
        if len(masks) and head.test_cfg.get('filter_low_score', False):
            winners = (scores[kept][:, None, None] * masks).argmax(0, keepdim=True)
            undecided |= (masks.gather(0, winners)[0] - 0.5).abs() <= self.tolerance
        self.undecided = undecided.cpu().numpy()
        return origin(head, mask_cls, mask_pred)


class _RecordStuff(FunctionRewriter):
    """Keeps where the two best classes of the semantic branch leave a pixel undecided."""

    target = 'mmdet.models.seg_heads.panoptic_fusion_heads.heuristic_fusion_head.HeuristicFusionHead._predict_single'

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance
        self.undecided: np.ndarray | None = None

    def __call__(self, origin: Callable, head: Any, mask_results: Any, seg_preds: Tensor, **kwargs: Any) -> Any:
        best = seg_preds.topk(2, dim=0)[0]
        spread = seg_preds.max() - seg_preds.min()
        self.undecided = (best[0] - best[1] <= self.tolerance * spread).cpu().numpy()
        return origin(head, mask_results, seg_preds, **kwargs)


@TASKS.register_module()
class PanopticSegmentation(BaseTask):
    """A class for every pixel, and a number for each object."""

    name = 'panoptic'
    kind = 'seg_map'
    outputs = 'panoptic_seg'
    codebase = 'mmdet'
    default_deploy_cfg = 'mmdet/panoptic_onnxruntime.py'
    needs_ori_shape = True

    @property
    def needs_scale_factor(self) -> bool:
        """Only the boxes of a RoI head are scaled."""
        return has_boxes(self.model)

    @property
    def num_classes(self) -> int:
        """Of things and stuff."""
        return int(self.model.panoptic_fusion_head.num_classes)

    def output_shapes(self) -> dict[str, tuple[int | str, ...]]:
        return {'panoptic_seg': (self.batch_size, 'map_height', 'map_width')}

    def wrapper(self) -> PanopticWrapper:
        return PanopticWrapper(self.model, self.in_graph(), self.rescale, self.input_names)

    def reference(self, sample: Sample) -> tuple[PanopticMap, SegEvidence]:
        queries, stuff = _RecordQueries(self.tolerance.mask), _RecordStuff(self.tolerance.mask)
        with (
            record_evidence(self.model, self.tolerance) as recorder,
            RewriteContext({'queries': queries, 'stuff': stuff}),
        ):
            answer = self._read(self.test_step(sample))
        undecided = queries.undecided if stuff.undecided is None else stuff.undecided
        if recorder.paste.pasted:
            undecided = undecided | recorder.paste.undecided().any(axis=0)
        return answer, SegEvidence(undecided, lambda: self._double_run(sample))

    def _double_run(self, sample: Sample) -> np.ndarray | None:
        with record_evidence(self.double_model(), self.tolerance):
            return self.lazily(sample, lambda item: self._read(item).seg_map)()

    def answer(self, outputs: Mapping[str, np.ndarray], index: int = 0) -> PanopticMap:
        return PanopticMap(outputs['panoptic_seg'][index])

    def compare(
        self, sample: Sample, reference: PanopticMap, answer: PanopticMap, tolerance: Tolerance, evidence: Any
    ) -> Comparison:
        return compare_seg_map(reference, answer, tolerance, evidence)

    def data_sample(self, sample: Sample, answer: PanopticMap) -> Any:
        from ..check.visualize import segmentation_sample

        return segmentation_sample(answer)

    def _predict(self, model: Any, inputs: Tensor, data_samples: list[Any]) -> list[Any]:
        return model.predict(inputs, data_samples, rescale=self.rescale)

    @staticmethod
    def _read(data_sample: Any) -> PanopticMap:
        return PanopticMap(data_sample.pred_panoptic_seg.sem_seg[0].long().cpu().numpy())
