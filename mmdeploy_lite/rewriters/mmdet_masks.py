"""Primitives of mmdet's heads that answer masks of the whole image: dynamic convolutions, matrix NMS, fast NMS."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import NothingDetectedError, UnsupportedError
from ..export.operators import REJECTED, reject
from ..export.shapes import at_most, axis_size, python_int, python_shape
from ..export.tracing import is_tracing, note_rejected
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter
from .mmcv_ops import EMPTY_HINT, nms_arguments, tighter
from .mmdet_boxes import inverse_scale
from .mmdet_dense import top_k


def require_any(values: Tensor, what: str) -> None:
    """Nothing while tracing would leave the libraries' early return for nothing in the graph, and no more.

    Args:
        values: (n, ...), what is left.
        what: in the message.

    Raises:
        NothingDetectedError: n is 0 while tracing.
    """
    if is_tracing() and python_shape(values)[0] == 0:
        raise NothingDetectedError(
            f'no {what} while tracing, so what comes after it could not be recorded in the graph: {EMPTY_HINT}'
        )


@REWRITERS.register_module()
class DynamicConv(FunctionRewriter):
    """A 1 x 1 convolution with the kernels of each instance as one batched matrix product.

    Their number is that of the objects found: as a grouped convolution (CondInst, RTMDet-Ins) ONNX would fix it in
    the graph, and as a plain one (SOLOv2) the exporter wants to know it.
    """

    target = 'torch.nn.functional.conv2d'

    def __call__(
        self,
        origin: Callable,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: Any = 1,
    ) -> Tensor:
        outputs, inputs, *kernel = python_shape(weight)
        plain = kernel == [1, 1] and (_pair(stride), _pair(padding)) == ((1, 1), (0, 0))
        if not isinstance(groups, (Tensor, torch.SymInt)):  # a Python number: no image changes it
            if not plain or groups != 1 or isinstance(weight, nn.Parameter):
                return origin(input, weight, bias, stride, padding, dilation, groups)
            kernels, places = weight.reshape(1, -1, inputs), (1, -1, 1)
        elif plain:
            outputs //= python_int(groups)
            kernels, places = weight.reshape(-1, outputs, inputs), (-1, outputs, 1)
        else:
            raise UnsupportedError(
                f'a convolution with {kernel[0]} x {kernel[1]} kernels, stride {stride} and padding {padding}, of which'
                ' each object has its own, cannot be exported; only 1 x 1, stride 1 and no padding can'
            )
        height, width = input.shape[-2:]
        result = kernels @ input.reshape(-1, inputs, height * width)
        if bias is not None:
            result = result + bias.reshape(*places)
        return result.reshape(python_shape(input)[0], -1, height, width)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


@REWRITERS.register_module()
class DynamicParams(FunctionRewriter):
    """Kernels and biases of each instance from its parameters; the original's ``reshape(n, -1, 1, 1)`` is no shape
    that ONNX has for n = 0.
    """

    target = (
        'mmdet.models.dense_heads.condinst_head.CondInstMaskHead.parse_dynamic_params',
        'mmdet.models.dense_heads.rtmdet_ins_head.RTMDetInsHead.parse_dynamic_params',
    )

    def __call__(self, origin: Callable, head: Any, *args: Tensor, **kwargs: Tensor) -> tuple[Any, Any]:
        (params,) = (*args, *kwargs.values())  # which the two call by different names
        sizes, outputs = list(head.weight_nums), list(head.bias_nums)
        parts = torch.split_with_sizes(params, sizes + outputs, dim=1)
        inputs = [size // count for size, count in zip(sizes, outputs, strict=True)]
        weights = [part.reshape(-1, count, 1, 1) for part, count in zip(parts, inputs, strict=False)]
        return weights, [part.reshape(-1) for part in parts[len(sizes) :]]


@REWRITERS.register_module()
class RTMDetInsPostProcess(FunctionRewriter):
    """As BBoxPostProcess: small boxes get the score REJECTED, ``max_per_img`` becomes a limit of NMS.

    Raises:
        UnsupportedError: torch is older than 2.3. The size that masks are resized to is computed in float64, see
            :func:`exact_scale_factor`, of which its export makes float32 in some of the operators.
    """

    target = 'mmdet.models.dense_heads.rtmdet_ins_head.RTMDetInsHead._bbox_mask_post_process'

    def check(self, model: Any) -> None:
        if torch.__version__ >= (2, 3):
            return
        from mmdet.models.dense_heads.rtmdet_ins_head import RTMDetInsHead

        if any(isinstance(module, RTMDetInsHead) for module in model.modules()):
            raise UnsupportedError(
                f'masks of RTMDet-Ins need torch 2.3 or newer to be exported, and this is {torch.__version__}'
            )

    def __call__(
        self,
        origin: Callable,
        head: Any,
        results: Any,
        mask_feat: Tensor,
        cfg: Any,
        rescale: bool = False,
        with_nms: bool = True,
        img_meta: dict | None = None,
    ) -> Any:
        from mmdet.structures.bbox import get_box_wh, scale_boxes

        cfg = copy.deepcopy(cfg)
        if rescale:
            img_meta = {**img_meta, 'scale_factor': exact_scale_factor(img_meta)}
        min_size = cfg.get('min_bbox_size', -1)
        if min_size >= 0:
            boxes = scale_boxes(results.bboxes, inverse_scale(img_meta)) if rescale else results.bboxes
            width, height = get_box_wh(boxes)
            results.scores = reject(results.scores, (width > min_size) & (height > min_size))
            cfg.min_bbox_size = -1
            note_rejected(True)
        cfg.nms.max_num = tighter(nms_arguments(cfg.nms)['max_num'], cfg.max_per_img)
        return origin(head, results, mask_feat, cfg, rescale=rescale, with_nms=with_nms, img_meta=img_meta)


def exact_scale_factor(img_meta: dict) -> tuple[Any, Any]:
    """The (w, h) scale factor in float64, as the pipeline computed it: the resized size over the original one.

    The file's input is float32, and a size that is computed from it and rounded up may then be one pixel larger. The
    resized size is a whole number, so it comes out again.
    """
    factor, original = img_meta['scale_factor'], img_meta['ori_shape']
    exact = []
    for value, size in ((factor[0], original[1]), (factor[1], original[0])):
        if not isinstance(value, Tensor):
            exact.append(value)
            continue
        ratio = torch.round(value.double() * size) / size
        exact.append(torch.where(ratio.float() == value, ratio, value.double()))
    return exact[0], exact[1]


@REWRITERS.register_module()
class MaskMatrixNMS(FunctionRewriter):
    """Matrix NMS (https://arxiv.org/abs/2003.10152) without the original's branches on numbers of masks."""

    target = 'mmdet.models.layers.matrix_nms.mask_matrix_nms'

    def __call__(
        self,
        origin: Callable,
        masks: Tensor,
        labels: Tensor,
        scores: Tensor,
        filter_thr: float = -1,
        nms_pre: int = -1,
        max_num: int = -1,
        kernel: str = 'gaussian',
        sigma: float = 2.0,
        mask_area: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if kernel not in ('gaussian', 'linear'):
            raise UnsupportedError(f"matrix NMS with kernel='{kernel}': only 'gaussian' and 'linear' exist")
        if mask_area is None:
            mask_area = masks.sum((1, 2)).float()
        scores, keep = _best(scores, nms_pre)
        masks, labels, mask_area = masks[keep], labels[keep], mask_area[keep]
        scores = scores * self._decay(masks, labels, mask_area, kernel, sigma)
        if filter_thr > 0:
            passed = (scores >= filter_thr).nonzero().squeeze(1)
            scores, labels, masks, keep = scores[passed], labels[passed], masks[passed], keep[passed]
        scores, order = _best(scores, max_num)
        require_any(scores, 'mask passed matrix NMS')
        return scores, labels[order], masks[order], keep[order]

    @staticmethod
    def _decay(masks: Tensor, labels: Tensor, area: Tensor, kernel: str, sigma: float) -> Tensor:
        """(n,) by how much better masks of the same class lower each score."""
        flat = masks.flatten(1).float()
        shared = flat @ flat.t()
        iou = shared / (area[None] + area[:, None] - shared)
        iou = (iou * (labels[None] == labels[:, None])).triu(diagonal=1)
        # a row more, so that there is a largest and a smallest where there are no masks
        most = torch.cat([iou, torch.zeros_like(area, dtype=iou.dtype)[None]]).amax(dim=0)[:, None]
        if kernel == 'gaussian':
            decay = torch.exp(-1 * sigma * iou**2) / torch.exp(-1 * sigma * most**2)
        else:
            decay = (1 - iou) / (1 - most)
        last = torch.full_like(area, float('inf'), dtype=decay.dtype)
        return torch.cat([decay, last[None]]).amin(dim=0)


@REWRITERS.register_module()
class SOLOBoxes(FunctionRewriter):
    """As many boxes of zeros as there are masks: SOLO has none. The original's ``new_zeros(len(scores), 4)`` freezes
    how many.
    """

    target = (
        'mmdet.models.dense_heads.solo_head.SOLOHead._predict_by_feat_single',
        'mmdet.models.dense_heads.solo_head.DecoupledSOLOHead._predict_by_feat_single',
        'mmdet.models.dense_heads.solov2_head.SOLOV2Head._predict_by_feat_single',
    )

    def __call__(self, origin: Callable, head: Any, *args: Any, **kwargs: Any) -> Any:
        results = origin(head, *args, **kwargs)
        results.bboxes = torch.zeros_like(results.scores)[:, None].repeat(1, 4)
        return results


def _best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The scores in descending order, at most ``count`` of them if that is above zero, and their places."""
    return top_k(scores, count) if count > 0 else scores.sort(descending=True)


@REWRITERS.register_module()
class YOLACTPreselect(FunctionRewriter):
    """As RPNPreselect: hands each level's ``nms_pre`` best anchors to the original, which has nothing left to pick."""

    target = 'mmdet.models.dense_heads.yolact_head.YOLACTHead._predict_by_feat_single'

    def __call__(
        self,
        origin: Callable,
        head: Any,
        cls_score_list: list[Tensor],
        bbox_pred_list: list[Tensor],
        coeff_preds_list: list[Tensor],
        mlvl_priors: list[Tensor],
        img_meta: dict,
        cfg: Any,
        rescale: bool = True,
    ) -> Any:
        nms_pre = (head.test_cfg if cfg is None else cfg).get('nms_pre', -1)
        levels = list(zip(cls_score_list, bbox_pred_list, coeff_preds_list, mlvl_priors, strict=True))
        if nms_pre > 0:
            levels = [self._select(head, nms_pre, *level) for level in levels]
        return origin(head, *map(list, zip(*levels, strict=True)), img_meta, cfg, rescale=rescale)

    @staticmethod
    def _select(
        head: Any, nms_pre: int, cls_score: Tensor, bbox_pred: Tensor, coeff: Tensor, priors: Tensor
    ) -> tuple[Tensor, ...]:
        rows = [
            value.permute(1, 2, 0).reshape(-1, size)
            for value, size in ((cls_score, head.cls_out_channels), (bbox_pred, 4), (coeff, head.num_protos))
        ]
        scores = rows[0].sigmoid() if head.use_sigmoid_cls else rows[0].softmax(-1)[:, :-1]
        _, inds = top_k(scores.max(dim=1)[0], nms_pre)
        return *(value[inds].t()[..., None] for value in rows), priors[inds]


@REWRITERS.register_module()
class FastNMS(FunctionRewriter):
    """YOLACT's fast NMS (https://arxiv.org/abs/1904.02689) with sizes that stay fixed until its end.

    The original picks by a boolean index from all classes, and freezes the number of boxes.
    """

    target = 'mmdet.models.layers.bbox_nms.fast_nms'

    def __call__(
        self,
        origin: Callable,
        multi_bboxes: Tensor,
        multi_scores: Tensor,
        multi_coeffs: Tensor,
        score_thr: float,
        iou_thr: float,
        top_k: int,
        max_num: int = -1,
    ) -> tuple[Tensor, Tensor, Tensor]:
        from mmdet.structures.bbox import bbox_overlaps

        num_classes = python_shape(multi_scores)[1] - 1  # the last column is the background's
        scores, places = _best_of_rows(multi_scores[:, :-1].t(), top_k)
        boxes = multi_bboxes[places]
        iou = bbox_overlaps(boxes, boxes).triu(diagonal=1)
        accepted = (iou.amax(dim=1) <= iou_thr) & (scores > score_thr)
        labels = torch.arange(num_classes, device=scores.device)[:, None].expand_as(places)
        scores, order = _best(reject(scores, accepted).flatten(), max_num)
        found = (scores > REJECTED).nonzero().squeeze(1)
        scores, order = scores[found], order[found]
        require_any(scores, 'box passed fast NMS')
        places = places.flatten()[order]
        return torch.cat([multi_bboxes[places], scores[:, None]], dim=1), labels.flatten()[order], multi_coeffs[places]


def _best_of_rows(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest of each row, or all where there are fewer, and their places."""
    return scores.topk(at_most(axis_size(scores, 1), count), dim=1)


@REWRITERS.register_module()
class AlignedBilinear(FunctionRewriter):
    """Hands the original a Python number: the ratio of two levels' sizes, which is the same for every image."""

    target = 'mmdet.models.utils.misc.aligned_bilinear'

    def __call__(self, origin: Callable, tensor: Tensor, factor: Any) -> Tensor:
        return origin(tensor, python_int(factor))
