"""Primitives of mmdet's transformer detectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..export.operators import reject
from ..export.shapes import python_shape
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter, RewriteContext


@REWRITERS.register_module()
class DETRPreTransformer(FunctionRewriter):
    """Tells ``pre_transformer`` in Python numbers that no image of the batch is padded.

    It compares each image's size with the batch's to do without a mask; the comparison of traced sizes would be
    frozen. Where the two are one and the same number it holds for every image, and nothing else is read from them.
    With padding, whether there is a
    mask depends on the size: the original runs, and the audit names its line where the size is dynamic.
    """

    target = (
        'mmdet.models.detectors.detr.DETR.pre_transformer',
        'mmdet.models.detectors.deformable_detr.DeformableDETR.pre_transformer',
    )

    def __call__(
        self, origin: Callable, detector: Any, feats: tuple[Tensor, ...], batch_data_samples: list[Any]
    ) -> Any:
        if not all(_unpadded(sample) for sample in batch_data_samples):
            return origin(detector, feats, batch_data_samples)
        size = python_shape(feats[0])[-2:]  # any one: equal to itself is all that is asked
        return origin(detector, feats, [_Sized(size, size) for _ in batch_data_samples])


class _Sized:
    """A data sample of which only the sizes are read."""

    def __init__(self, img_shape: tuple[int, int], batch_input_shape: tuple[int, int]) -> None:
        self.img_shape = img_shape
        self.batch_input_shape = batch_input_shape


def _unpadded(sample: Any) -> bool:
    return all(size is padded for size, padded in zip(sample.img_shape, sample.batch_input_shape, strict=True))


@REWRITERS.register_module()
class PaddingTo(FunctionRewriter):
    """Pads with as many rows as the result has, and cuts off what is too much; the original counts the rows of one
    image.
    """

    target = 'mmdet.models.utils.misc.padding_to'

    def __call__(self, origin: Callable, input_tensor: Tensor, max_len: int | None = 300) -> Tensor:
        if max_len is None:
            return input_tensor
        padding = input_tensor.new_zeros(max_len, *python_shape(input_tensor)[1:])
        return torch.cat([input_tensor, padding])[:max_len]


@REWRITERS.register_module()
class SelectDistinctQueries(FunctionRewriter):
    """The queries that NMS keeps as a mask over all of them (DDQ, https://arxiv.org/abs/2303.12776).

    The original copies the last mask with ``deepcopy``, which makes zeros of a traced value, and counts the queries of
    one image.
    """

    target = 'mmdet.models.layers.transformer.ddq_detr_layers.DDQTransformerDecoder.select_distinct_queries'

    def __call__(
        self,
        origin: Callable,
        decoder: Any,
        reference_points: Tensor,
        query: Tensor,
        self_attn_mask: Tensor,
        layer_index: int,
    ) -> Tensor:
        from mmcv.ops.nms import batched_nms
        from mmdet.structures.bbox import bbox_cxcywh_to_xyxy

        cache = decoder.cache_dict
        start, count = cache['dis_query_info']
        if (start, count) != (0, python_shape(query)[1]):
            raise UnsupportedError(
                'DDQ has other queries than distinct ones, as in training; only inference is exported'
            )
        heads = cache['num_heads']
        scores = cache['cls_branches'][layer_index](query).sigmoid().max(-1).values
        boxes = bbox_cxcywh_to_xyxy(reference_points)
        masks = []
        for image in range(python_shape(query)[0]):
            here = ~self_attn_mask[image * heads][0]
            ones = torch.ones_like(scores[image])
            _, keep = batched_nms(boxes[image], reject(scores[image], here), ones, cache['dqs_cfg'])
            dropped = ones.scatter(0, keep, torch.zeros_like(keep).to(ones)) > 0
            masks.append((dropped[:, None] & dropped)[None].expand(heads, -1, -1))
        mask = torch.cat(masks)
        cache['distinct_query_mask'].append(~mask)
        return mask


class _OneClass(FunctionRewriter):
    """NMS of boxes of one class, whatever their number."""

    target = 'mmcv.ops.nms.batched_nms'

    def __call__(
        self, origin: Callable, boxes: Tensor, scores: Tensor, idxs: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return origin(boxes, scores, torch.ones_like(scores), *args, **kwargs)


@REWRITERS.register_module()
class DDQPreDecoder(FunctionRewriter):
    """The original, whose NMS gets its one class as ones of the scores' size; ``torch.ones(len(scores))`` has that of
    one image.
    """

    target = 'mmdet.models.detectors.ddq_detr.DDQDETR.pre_decoder'

    def __call__(self, origin: Callable, detector: Any, *args: Any, **kwargs: Any) -> Any:
        with RewriteContext({'one_class': _OneClass()}):
            return origin(detector, *args, **kwargs)
