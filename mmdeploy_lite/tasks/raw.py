"""What a detector's head says before any of it is decoded."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..check.answers import Detections, RawTensors
from ..check.compare import compare_tensors
from ..check.comparison import Comparison
from ..check.tolerance import Tolerance
from ..errors import UnsupportedError
from ..registry import TASKS
from .base import Sample
from .detection import DetectionWrapper, ObjectDetection

# Two image sizes: what differs between them depends on the size.
_SIZES = ((128, 192), (192, 256))


class RawWrapper(DetectionWrapper):
    """mmdet's own ``mode='tensor'``: the outputs of the head."""

    def forward(self, image: Tensor, *extra: Tensor) -> tuple[Tensor, ...]:
        """Run up to the head.

        Args:
            image: (N, C, H, W).
            *extra: ``img_shape``, where the file has it.
        """
        return tuple(tensors_in(self.model.forward(*self.batch(image, extra), mode='tensor')))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of nested containers, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


@TASKS.register_module()
class RawDetection(ObjectDetection):
    """The outputs of a one-stage detector's head, before thresholds, decoding and NMS.

    They are named as the arguments of the head's ``predict_by_feat``, numbered by level where there are several.

    Raises:
        UnsupportedError: the detector has two stages: its head works on what an NMS left.
    """

    kind = 'tensors'
    outputs = 'raw'
    runtime_reads = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if hasattr(self.model, 'roi_head') or not hasattr(self.model, 'bbox_head'):
            raise UnsupportedError(
                f"outputs='raw' is for one-stage detectors; the head of {type(self.model).__name__} works on the"
                " proposals that an NMS left. Use outputs='detections'"
            )
        self.rescale = False  # nothing is in pixels

    def nms_configs(self) -> list[str]:
        return []

    def output_shapes(self) -> dict[str, tuple[int | str, ...]]:
        return dict(self._shapes)

    def wrapper(self) -> RawWrapper:
        return RawWrapper(self.model, self.in_graph(), self.rescale, self.input_names)

    def reference(self, sample: Sample) -> tuple[RawTensors, None]:
        return RawTensors(self._named([tensor.float().cpu().numpy() for tensor in self._run(sample)], 0)), None

    def answer(self, outputs: Mapping[str, np.ndarray], index: int = 0) -> RawTensors:
        return RawTensors(self._named([outputs[name] for name in self._shapes], index))

    def compare(
        self, sample: Sample, reference: RawTensors, answer: RawTensors, tolerance: Tolerance, evidence: Any
    ) -> Comparison:
        return compare_tensors(reference, answer, tolerance)

    def data_sample(self, sample: Sample, answer: RawTensors) -> Any:
        return super().data_sample(sample, Detections.empty())

    def _named(self, values: list[np.ndarray], index: int) -> dict[str, np.ndarray]:
        """The tensors of one image of the batch; those of decoders have the layers first."""
        return {
            name: value.take(index, axis=shape.index(self.batch_size))
            for (name, shape), value in zip(self._shapes.items(), values, strict=True)
        }

    def _run(self, sample: Sample) -> list[Tensor]:
        data = dict(inputs=[sample.inputs], data_samples=[sample.data_sample])
        with torch.no_grad():
            return list(tensors_in(self.model.forward(**self.model.data_preprocessor(data, False), mode='tensor')))

    @functools.cached_property
    def _shapes(self) -> dict[str, tuple[int | str, ...]]:
        small, large = (self._dry_run(*size) for size in _SIZES)
        names = self._names(small)
        return {
            name: tuple(
                extent if extent == other else f'{name}_{axis}'
                for axis, (extent, other) in enumerate(zip(one.shape, two.shape, strict=True))
            )
            for name, one, two in zip(names, tensors_in(small), tensors_in(large), strict=True)
        }

    def _dry_run(self, height: int, width: int) -> Any:
        channels = len(self.preprocess_spec.mean or (0, 0, 0))
        wrapper = RawWrapper(self.model, None, False)
        device = next(self.model.parameters()).device
        image = torch.zeros(self.batch_size, channels, height, width, device=device)
        with torch.no_grad():
            return self.model.forward(*wrapper.batch(image, ()), mode='tensor')

    def _names(self, outputs: Any) -> list[str]:
        """Of the tensors in a head's outputs, in order."""
        parts = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        known = list(inspect.signature(self.model.bbox_head.predict_by_feat).parameters)
        names = []
        for index, part in enumerate(parts):
            name = known[index] if index < len(known) and len(parts) <= len(known) else f'raw_{index}'
            found = list(tensors_in(part))
            names += [name] if isinstance(part, Tensor) else [f'{name}_{level}' for level in range(len(found))]
        return names
