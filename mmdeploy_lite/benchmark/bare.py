"""The bare network: what no exported file can be faster than."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from ..export.shapes import python_shape, static_size
from ..tasks.base import ModelWrapper


class BareNetwork(ModelWrapper):
    """The same weights and in-graph preprocessing up to the head's raw outputs.

    One-stage detectors: the head's outputs; two-stage: those of the RPN, so that the RoI heads count as post-
    processing;
    segmentors: the logits of the whole image, or of the windows as one batch.
    """

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Run up to the raw outputs."""
        inputs, _ = self.preprocess(image)
        model = self.model
        if hasattr(model, 'decode_head'):
            return tuple(_tensors(self._logits(inputs)))
        features = model.extract_feat(inputs)
        if hasattr(model, 'rpn_head'):
            return tuple(_tensors(model.rpn_head(features)))
        if hasattr(model, 'forward_transformer'):
            from mmdet.structures import DetDataSample

            size = static_size(inputs) or inputs.shape[-2:]
            sample = self.set_metainfo(DetDataSample(), img_shape=size, batch_input_shape=size)
            hidden = model.forward_transformer(features, [sample] * python_shape(image)[0])
            return tuple(_tensors(model.bbox_head(**hidden)))
        return tuple(_tensors(model.bbox_head(features)))

    def _logits(self, inputs: Tensor) -> Any:
        model = self.model
        if model.test_cfg.get('mode', 'whole') != 'slide':
            return model.decode_head(model.extract_feat(inputs))
        from ..rewriters.mmseg_slide import cut_windows

        windows, _, _ = cut_windows(model, inputs, python_shape(inputs)[-2:])
        return model.decode_head(model.extract_feat(windows))


def _tensors(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
