"""Object detection and instance segmentation with mmdet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..check.answers import DetectionEvidence, Detections
from ..check.compare import compare_detections
from ..check.comparison import Comparison
from ..check.tolerance import Tolerance
from ..export.operators import REJECTED, count_rows
from ..export.tracing import current_export
from ..registry import TASKS
from .base import BaseTask, ModelWrapper, Sample
from .evidence import EvidenceRecorder, record_evidence


class DetectionWrapper(ModelWrapper):
    """``predict`` of a detector as a function of the file's inputs.

    Args:
        masks: the model answers instance masks as well.
    """

    def __init__(self, *args: Any, masks: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.masks = masks

    def forward(self, image: Tensor, *extra: Tensor) -> tuple[Tensor, ...]:
        """Predict.

        Args:
            image: (N, C, H, W) as the test pipeline leaves it.
            *extra: those that the file has of ``img_shape`` (N, 2) int64 (h, w), see :meth:`prepare`,
                ``scale_factor`` (N, 2) float32 (w, h), ``ori_shape`` (N, 2) int64 (h, w) and ``border`` (N, 4) float32
                (top, bottom, left, right).

        Returns:
            ``dets`` (N, K, 5), ``labels`` (N, K), ``num_dets`` (N,) and, with masks, ``masks`` (N, K, h, w) bool.
        """
        inputs, samples = self.batch(image, extra)
        results = [sample.pred_instances for sample in self.model.predict(inputs, samples, rescale=self.rescale)]
        return self._pack([self._fields(result) for result in results])

    def batch(self, image: Tensor, extra: Sequence[Tensor]) -> tuple[Tensor, list[Any]]:
        """The network's input, and a data sample for each image as ``predict`` takes them."""
        from mmdet.structures import DetDataSample

        given = dict(zip(self.input_names[1:], extra, strict=True))
        scale_factor, ori_shape, border = map(given.get, ('scale_factor', 'ori_shape', 'border'))
        inputs, sizes, padded = self.prepare(image, given.get('img_shape'))
        samples = []
        for index, (height, width) in enumerate(sizes):
            factor = (1.0, 1.0) if scale_factor is None else scale_factor[index]
            original = (height, width) if ori_shape is None else (ori_shape[index, 0], ori_shape[index, 1])
            around = {} if border is None else {'border': border[index]}
            samples.append(
                self.set_metainfo(
                    DetDataSample(),
                    img_shape=(height, width),
                    pad_shape=padded,
                    batch_input_shape=padded,
                    ori_shape=original,
                    scale_factor=factor,
                    **around,
                )
            )
        return inputs, samples

    def _fields(self, result: Any) -> list[Tensor]:
        fields = [torch.cat([result.bboxes, result.scores[:, None]], dim=1), result.labels.long()]
        if self.masks:
            fields.append(result.masks)
        state = current_export()
        if state is not None and state.rejected_pending:  # no NMS came after the filter
            accepted = (result.scores > REJECTED).nonzero().squeeze(1)
            fields = [field[accepted] for field in fields]
        return fields

    @staticmethod
    def _pack(images: list[list[Tensor]]) -> tuple[Tensor, ...]:
        sizes = [count_rows(fields[1]) for fields in images]
        counts = torch.cat(sizes)
        if len(images) == 1:
            dets, labels, *masks = (field[None] for field in images[0])
            return (dets, labels, counts, *masks)
        longest = counts.max()
        packed = []
        for column, fill in zip(zip(*images, strict=True), (0.0, -1, False), strict=False):
            rows = []
            for field, size in zip(column, sizes, strict=True):
                pads = [0] * (2 * (field.dim() - 1)) + [0, longest - size[0]]
                rows.append(F.pad(field, pads, value=fill))
            packed.append(torch.stack(rows))
        dets, labels, *masks = packed
        return (dets, labels, counts, *masks)


def has_boxes(model: Any) -> bool:
    """Whether a head of the model answers boxes."""
    return any(getattr(model, name, None) is not None for name in ('bbox_head', 'roi_head'))


@TASKS.register_module()
class ObjectDetection(BaseTask):
    """Boxes, labels and scores."""

    name = 'detection'
    kind = 'detections'
    outputs = 'detections'
    codebase = 'mmdet'
    default_deploy_cfg = 'mmdet/detection_onnxruntime.py'
    needs_scale_factor = True
    masks = False

    @property
    def input_names(self) -> list[str]:
        """Of the graph, in order."""
        padded = any(str(step['type']).split('.')[-1] == 'RandomCenterCropPad' for step in self.pipeline.steps)
        return [*super().input_names, *['border'] * padded]

    def feeds(self, samples: list[Sample]) -> dict[str, np.ndarray]:
        """The graph's inputs for a batch of images of one size."""
        feeds = super().feeds(samples)
        if 'border' in self.input_names:
            feeds['border'] = np.array([item.data_sample.metainfo['border'] for item in samples], dtype=np.float32)
        return feeds

    def output_shapes(self) -> dict[str, tuple[int | str, ...]]:
        batch = self.batch_size
        return {'dets': (batch, 'num_dets', 5), 'labels': (batch, 'num_dets'), 'num_dets': (batch,)}

    def wrapper(self) -> DetectionWrapper:
        return DetectionWrapper(self.model, self.in_graph(), self.rescale, self.input_names, masks=self.masks)

    def reference(self, sample: Sample) -> tuple[Detections, DetectionEvidence]:
        with record_evidence(self.model, self.tolerance) as recorder:
            answer = self._read(self.test_step(sample))
        scale = sample.data_sample.metainfo.get('scale_factor', (1.0, 1.0)) if self.rescale else (1.0, 1.0)
        evidence = recorder.evidence(answer, scale, float64=lambda: self._double_run(sample))
        evidence.moved = lambda: self.moved_answers(sample, self._read)
        return answer, evidence

    def double_answer(self, sample: Sample) -> Detections | None:
        """PyTorch's answer in float64; None where the model cannot run in it."""
        double = self._double_run(sample)
        return None if double is None else double[0]

    def _double_run(self, sample: Sample) -> tuple[Detections, EvidenceRecorder] | None:
        with record_evidence(self.double_model(), self.tolerance) as recorder:
            answer = self.lazily(sample, self._read)()
        return None if answer is None else (answer, recorder)

    def answer(self, outputs: Mapping[str, np.ndarray], index: int = 0) -> Detections:
        count = int(outputs['num_dets'][index])
        dets = outputs['dets'][index, :count]
        masks = outputs['masks'][index, :count].astype(bool) if self.masks else None
        return Detections(dets[:, :4], dets[:, 4], outputs['labels'][index, :count], masks)

    def compare(
        self, sample: Sample, reference: Detections, answer: Detections, tolerance: Tolerance, evidence: Any
    ) -> Comparison:
        size = sample.image.shape[:2] if self.rescale else sample.shape
        return compare_detections(reference, answer, size, tolerance, evidence, num_classes=self.num_classes)

    def data_sample(self, sample: Sample, answer: Detections) -> Any:
        from ..check.visualize import detection_sample

        return detection_sample(answer)

    def _predict(self, model: Any, inputs: Tensor, data_samples: list[Any]) -> list[Any]:
        return model.predict(inputs, data_samples, rescale=self.rescale)

    def _read(self, data_sample: Any) -> Detections:
        result = data_sample.pred_instances
        masks: Callable | np.ndarray | None = None
        if self.masks:
            masks = np.asarray(result.masks.cpu()).astype(bool)
        return Detections(
            result.bboxes.float().cpu().numpy(),
            result.scores.float().cpu().numpy(),
            result.labels.long().cpu().numpy(),
            masks,
        )


@TASKS.register_module()
class InstanceSegmentation(ObjectDetection):
    """Boxes, labels, scores and a mask for each, pasted into the original image."""

    name = 'instance_segmentation'
    default_deploy_cfg = 'mmdet/instance_segmentation_onnxruntime.py'
    needs_ori_shape = True
    masks = True

    def _predict(self, model: Any, inputs: Tensor, data_samples: list[Any]) -> list[Any]:
        if not self.rescale and not has_boxes(model):  # SOLO answers in pixels of the original whatever it is asked
            for sample in data_samples:
                sample.set_metainfo(dict(ori_shape=sample.img_shape))
        return super()._predict(model, inputs, data_samples)

    @property
    def needs_scale_factor(self) -> bool:
        """Only boxes of a head are scaled: SOLO and Mask2Former have masks alone."""
        return has_boxes(self.model)

    def output_shapes(self) -> dict[str, tuple[int | str, ...]]:
        return {**super().output_shapes(), 'masks': (self.batch_size, 'num_dets', 'mask_height', 'mask_width')}
