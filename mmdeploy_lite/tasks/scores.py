"""Semantic segmentation that answers the scores of all classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..check.answers import RawTensors, SegMap
from ..check.compare import compare_tensors
from ..check.comparison import Comparison
from ..check.tolerance import Tolerance
from ..registry import TASKS
from .base import Sample
from .segmentation import SegmentationWrapper, SemanticSegmentation


class LogitsWrapper(SegmentationWrapper):
    """``seg_logits`` (N, C, h, w) float32, as ``predict`` leaves them: of a single channel, the probability."""

    def read(self, results: list[Any]) -> Tensor:
        return torch.stack([result.seg_logits.data for result in results])


class ProbabilitiesWrapper(LogitsWrapper):
    """``seg_probs`` (N, C, h, w) float32: their softmax over the classes; of a single channel, what ``predict`` has."""

    def read(self, results: list[Any]) -> Tensor:
        logits = super().read(results)
        return logits if self.model.out_channels == 1 else logits.softmax(dim=1)


@TASKS.register_module()
class SegmentationLogits(SemanticSegmentation):
    """A logit for every class and pixel."""

    kind = 'tensors'
    outputs = 'seg_logits'
    wants_logits = True
    wrapper_type: ClassVar[type[LogitsWrapper]] = LogitsWrapper

    def output_shapes(self) -> dict[str, tuple[int | str, ...]]:
        return {self.outputs: (self.batch_size, int(self.model.out_channels), 'map_height', 'map_width')}

    def wrapper(self) -> LogitsWrapper:
        return self.wrapper_type(self.model, self.in_graph(), self.rescale, self.input_names)

    def reference(self, sample: Sample) -> tuple[RawTensors, None]:
        with torch.no_grad():
            scores = self.wrapper_type.read(self.wrapper(), [self.test_step(sample)])
        return RawTensors({self.outputs: scores[0].float().cpu().numpy()}), None

    def answer(self, outputs: Mapping[str, np.ndarray], index: int = 0) -> RawTensors:
        return RawTensors({self.outputs: outputs[self.outputs][index]})

    def compare(
        self, sample: Sample, reference: RawTensors, answer: RawTensors, tolerance: Tolerance, evidence: Any
    ) -> Comparison:
        return compare_tensors(reference, answer, tolerance)

    def data_sample(self, sample: Sample, answer: RawTensors) -> Any:
        scores = answer.tensors[self.outputs]
        labels = scores.argmax(axis=0) if len(scores) > 1 else scores[0] > self.threshold
        return super().data_sample(sample, SegMap(labels.astype(np.int64)))


@TASKS.register_module()
class SegmentationProbabilities(SegmentationLogits):
    """A probability for every class and pixel."""

    outputs = 'seg_probs'
    wrapper_type = ProbabilitiesWrapper
