"""The seam for operators that PyTorch has no equivalent of.

Each is a function of tensors that computes the true answer in PyTorch and becomes one standard ONNX operator when it
is traced. Rewriters call these and know of no exporter.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .shapes import tracing_paused
from .tracing import is_symbolic

REJECTED = float('-inf')
"""The score of a candidate that a threshold or filter dropped. It keeps its place, so that sizes stay fixed while
tracing, until :func:`non_max_suppression`, whose own score threshold no REJECTED (or NaN, its product with zero)
passes.
"""


def reject(scores: Tensor, accepted: Tensor) -> Tensor:
    """The scores, REJECTED where not ``accepted``; both of shape (n,)."""
    # a scalar, not full_like: the exporter takes the length of a gathered tensor for known and freezes it
    return torch.where(accepted, scores, scores.new_full((), REJECTED))


_LOWEST = -3.0e38  # just above float32's lowest, so that only REJECTED and NaN lie below it
_UNLIMITED = 2**31 - 1


def _forget_sizes(g: Any, value: Any, dtype_of: Any, sizes: list[int | None]) -> Any:
    """``value`` with sizes that the exporter knows only where they are given.

    It takes the sizes of this one image for known where its shape inference cannot follow, and what is computed from
    them becomes
    a constant: the key length of attention in SegFormer, the number of boxes behind NMS. Only a node of its own is
    left alone.

    Args:
        g: the exporter's graph.
        value: what an operator gave.
        dtype_of: a value of the same dtype, or a dtype.
        sizes: of ``value``; None where an image can change it.
    """
    kind = torch._C.TensorType.get().with_dtype(dtype_of) if isinstance(dtype_of, torch.dtype) else dtype_of.type()
    unknown = kind.with_sizes(sizes)
    value.setType(unknown)
    value = g.op('Identity', value)
    value.setType(unknown)
    return value


class _ForgetSizes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, sizes: list[int | None]) -> Tensor:
        return tensor.clone()

    @staticmethod
    def symbolic(g: Any, tensor: Any, sizes: list[int | None]) -> Any:
        return _forget_sizes(g, g.op('Identity', tensor), tensor, sizes)


def forget_sizes(tensor: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The tensor; the exporter does not take its sizes along these axes for what they are in the traced image."""
    if is_symbolic():
        return tensor
    with tracing_paused():
        sizes = [None if axis in axes else int(size) for axis, size in enumerate(tensor.shape)]
    return _ForgetSizes.apply(tensor, sizes)


class _NonMaxSuppression(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, boxes: Tensor, scores: Tensor, iou_threshold: float, score_threshold: float, max_num: int
    ) -> Tensor:
        from mmcv.ops.nms import NMSop

        traced = torch._C._get_tracing_state() is not None
        with tracing_paused():
            inds = (scores > score_threshold).nonzero().squeeze(1)
            if inds.numel():
                inds = inds[NMSop.apply(boxes[inds], scores[inds], iou_threshold, 0, 0.0, -1)]
            elif traced:
                # what is traced are operators, not values: the libraries return early where no box is left, and the
                # heads that
                # work on boxes would be missing in the graph
                inds = inds.new_zeros(min(len(scores), 1))
            return inds[:max_num]

    @staticmethod
    def symbolic(g: Any, boxes: Any, scores: Any, iou_threshold: float, score_threshold: float, max_num: int) -> Any:
        def constant(value: Any, dtype: torch.dtype) -> Any:
            return g.op('Constant', value_t=torch.tensor(value, dtype=dtype))

        selected = g.op(
            'NonMaxSuppression',
            g.op('Unsqueeze', boxes, constant([0], torch.int64)),
            g.op('Unsqueeze', scores, constant([0, 1], torch.int64)),
            constant([max_num], torch.int64),
            constant([iou_threshold], torch.float32),
            constant([score_threshold], torch.float32),
        )
        column = g.op('Constant', value_t=torch.tensor(2))
        return _forget_sizes(g, g.op('Gather', selected, column, axis_i=1), torch.int64, [None])


def non_max_suppression(
    boxes: Tensor, scores: Tensor, iou_threshold: float, score_threshold: float | None = None, max_num: int = -1
) -> Tensor:
    """Greedy NMS in descending order of score, as one ``NonMaxSuppression`` node.

    Args:
        boxes: (n, 4) float32 x1 y1 x2 y2 with x2 >= x1 and y2 >= y1: ONNX reorders corners and mmcv does not, so
            callers see to it.
        scores: (n,) float32; :data:`REJECTED` ones never come out.
        iou_threshold: a box goes when its IoU with a kept one is above this.
        score_threshold: only scores above it take part; None for all that are not rejected.
        max_num: keep at most this many; none or negative for all.

    Returns:
        (k,) int64 indices of the kept boxes, in descending order of score.
    """
    threshold = _LOWEST if score_threshold is None else float(score_threshold)
    limit = int(max_num) if max_num > 0 else _UNLIMITED
    if is_symbolic():
        return torch.ops.mmdeploy_lite.non_max_suppression(boxes, scores, float(iou_threshold), threshold, limit)
    return _NonMaxSuppression.apply(boxes, scores, float(iou_threshold), threshold, limit)


class _RoIAlign(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        rois: Tensor,
        output_size: tuple[int, int],
        spatial_scale: float,
        sampling_ratio: int,
        aligned: bool,
    ) -> Tensor:
        from mmcv.ops.roi_align import RoIAlignFunction

        with tracing_paused():
            return RoIAlignFunction.apply(features, rois, output_size, spatial_scale, sampling_ratio, 'avg', aligned)

    @staticmethod
    def symbolic(
        g: Any,
        features: Any,
        rois: Any,
        output_size: tuple[int, int],
        spatial_scale: float,
        sampling_ratio: int,
        aligned: bool,
    ) -> Any:
        def constant(value: Any) -> Any:
            return g.op('Constant', value_t=torch.tensor(value, dtype=torch.int64))

        batch = g.op('Cast', g.op('Gather', rois, constant(0), axis_i=1), to_i=7)  # 7: int64
        aligned_features = g.op(
            'RoiAlign',
            features,
            g.op('Slice', rois, constant([1]), constant([5]), constant([1])),
            batch,
            coordinate_transformation_mode_s='half_pixel' if aligned else 'output_half_pixel',
            mode_s='avg',
            output_height_i=output_size[0],
            output_width_i=output_size[1],
            sampling_ratio_i=sampling_ratio,
            spatial_scale_f=spatial_scale,
        )
        channels = features.type().sizes()[1] if features.type().sizes() else None
        return _forget_sizes(g, aligned_features, features, [None, channels, *output_size])


def roi_align(
    features: Tensor,
    rois: Tensor,
    output_size: tuple[int, int],
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """Average RoIAlign as one ``RoiAlign`` node (opset 16, where ``coordinate_transformation_mode`` came).

    Args:
        features: (N, C, H, W) float32.
        rois: (n, 5) float32: index into N, then x1 y1 x2 y2 in pixels of the network's input.
        output_size: (h, w) of the result.
        spatial_scale: features' pixels per input pixel.
        sampling_ratio: samples per bin and direction; 0 adapts to the RoI's size.
        aligned: shift by half a pixel, mmcv's ``aligned``.

    Returns:
        (n, C, h, w) float32.
    """
    height, width = map(int, output_size)
    options = float(spatial_scale), int(sampling_ratio), bool(aligned)
    if is_symbolic():
        return torch.ops.mmdeploy_lite.roi_align(features, rois, height, width, *options)
    return _RoIAlign.apply(features, rois, (height, width), *options)


class _Squeeze(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, axes: list[int], rank: int) -> Tensor:
        for axis in reversed(axes):
            tensor = torch.select(tensor, axis, 0)
        return tensor.clone()

    @staticmethod
    def symbolic(g: Any, tensor: Any, axes: list[int], rank: int) -> Any:
        squeezed = g.op('Squeeze', tensor, g.op('Constant', value_t=torch.tensor(axes, dtype=torch.int64)))
        return _forget_sizes(g, squeezed, tensor, [None] * rank)


def squeeze(tensor: Tensor, axes: list[int]) -> Tensor:
    """Drop these axes, sorted and each of one element, as one ``Squeeze`` node."""
    if is_symbolic():
        return torch.ops.aten.squeeze.dims(tensor, axes)
    return _Squeeze.apply(tensor, axes, tensor.dim() - len(axes))


class _CountRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        with tracing_paused():
            return torch.tensor([tensor.shape[0]], device=tensor.device)

    @staticmethod
    def symbolic(g: Any, tensor: Any) -> Any:
        rank = len(tensor.type().sizes() or [None])
        rows = _forget_sizes(g, g.op('Identity', tensor), tensor, [None] * rank)
        first = g.op('Constant', value_t=torch.tensor([0]))
        return g.op('Slice', g.op('Shape', rows), first, g.op('Constant', value_t=torch.tensor([1])))


def count_rows(tensor: Tensor) -> Tensor:
    """(1,) int64: the first size of a tensor as it is at run time, never a constant that the exporter takes it for."""
    if is_symbolic():
        return torch.full((1,), tensor.shape[0], dtype=torch.int64, device=tensor.device)
    return _CountRows.apply(tensor)


class _Cut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, axes: list[int], starts: list[int], ends: list[int]) -> Tensor:
        for axis, start, end in zip(axes, starts, ends, strict=True):
            tensor = torch.narrow(tensor, axis, start, end - start)
        return tensor.clone()

    @staticmethod
    def symbolic(g: Any, tensor: Any, axes: list[int], starts: list[int], ends: list[int]) -> Any:
        bounds = (g.op('Constant', value_t=torch.tensor(value, dtype=torch.int64)) for value in (starts, ends, axes))
        return g.op('Slice', tensor, *bounds)


def cut(tensor: Tensor, ranges: dict[int, tuple[int, int]]) -> Tensor:
    """A part of a tensor as one ``Slice`` node; indexing makes a node, and a copy, of every axis.

    Args:
        tensor: of any shape.
        ranges: per axis, start and end as Python ints.
    """
    axes = sorted(ranges)
    if is_symbolic():
        for axis in axes:
            tensor = torch.narrow(tensor, axis, ranges[axis][0], ranges[axis][1] - ranges[axis][0])
        return tensor
    return _Cut.apply(tensor, axes, [ranges[axis][0] for axis in axes], [ranges[axis][1] for axis in axes])


class _PretendSome(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        traced = torch._C._get_tracing_state() is not None
        with tracing_paused():
            values = values.clone()
            if traced and values.numel():
                values.view(-1)[0] = float('inf')
            return values

    @staticmethod
    def symbolic(g: Any, values: Any) -> Any:
        return g.op('Identity', values)


def pretend_some(values: Tensor) -> Tensor:
    """The values; while tracing the first one is infinite, so that a threshold leaves at least one.

    What is traced are operators, not values: code that returns early, or skips a part, where no value passes would
    leave that part out of the graph. The graph has the values as they are.
    """
    return values if is_symbolic() else _PretendSome.apply(values)
