"""Primitives of mmdet's dense heads: candidates keep fixed sizes until NMS."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..export.operators import REJECTED, reject
from ..export.shapes import at_most, axis_size, python_shape
from ..export.tracing import note_rejected
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter
from .mmcv_ops import limited_nms
from .mmdet_boxes import inverse_scale

MANY = 10_000
"""A number of candidates that is seldom less than there are anchors."""


def top_k(values: Tensor, k: int, sorted: bool = True) -> tuple[Tensor, Tensor]:
    """The ``k`` largest of (n,) values, or all n where there are fewer, without a Python ``min`` over a traced size."""
    return values.topk(at_most(axis_size(values, 0), k), sorted=sorted)


@REWRITERS.register_module()
class FilterScoresAndTopk(FunctionRewriter):
    """Keeps ``topk`` (anchor, class) pairs, without the original's number frozen as it was for one image.

    Two ways with one answer. Pairs at or below ``score_thr`` keep their places, with the score REJECTED for NMS to
    drop: the ``topk`` best lie within the ``topk`` anchors whose best class scores highest, so TopK runs over anchors
    first and over ``topk`` x classes then, instead of over all pairs. Or they are left out by a NonZero over all
    pairs, for a ``topk`` that is more than there are anchors: with RTMDet-tiny's 672,000 pairs and 30,000 this took
    3 ms with NMS where 3,600 pairs passed the threshold, and the other way 42 ms; where half of all passed, 52 and 56.

    Args:
        fixed_size: which way: True the first, False the second, None by ``topk``, the second from :data:`MANY` on.
    """

    target = 'mmdet.models.utils.misc.filter_scores_and_topk'

    def __init__(self, fixed_size: bool | None = None) -> None:
        self.fixed_size = fixed_size

    def __call__(
        self, origin: Callable, scores: Tensor, score_thr: float, topk: int, results: Any = None
    ) -> tuple[Tensor, Tensor, Tensor, Any]:
        if topk <= 0:
            scores, labels, keep = self._sliced(scores, score_thr, topk)
        elif topk < MANY if self.fixed_size is None else self.fixed_size:
            scores, labels, keep = self._fixed(scores, score_thr, topk)
            note_rejected(True)
        else:
            scores, labels, keep = self._filtered(scores, score_thr, topk)
            note_rejected(True)
        if isinstance(results, dict):
            results = {name: value[keep] for name, value in results.items()}
        elif isinstance(results, list):
            results = [value[keep] for value in results]
        elif results is not None:
            results = results[keep]
        return scores, labels, keep, results

    @staticmethod
    def _fixed(scores: Tensor, score_thr: float, topk: int) -> tuple[Tensor, Tensor, Tensor]:
        num_classes = python_shape(scores)[1]
        if num_classes == 1:
            top, keep = top_k(scores[:, 0], topk)
            labels = torch.zeros_like(keep)
        else:
            _, anchors = top_k(scores.max(dim=1)[0], topk)
            top, pairs = top_k(scores[anchors].flatten(), topk)
            keep = anchors[torch.div(pairs, num_classes, rounding_mode='floor')]
            labels = pairs % num_classes
        return reject(top, top > score_thr), labels, keep

    @staticmethod
    def _filtered(scores: Tensor, score_thr: float, topk: int) -> tuple[Tensor, Tensor, Tensor]:
        num_classes = python_shape(scores)[1]
        pairs = (scores.flatten() > score_thr).nonzero().squeeze(1)
        # one rejected pair more, so that there are never none, for which the libraries return early
        pairs = torch.cat([pairs, pairs.new_zeros(1)])
        # of two axes: the exporter takes a concatenation of one for a shape, which has no REJECTED, and ONNX's shape
        # inference whatever becomes two of one, element by element
        scores = torch.cat([scores.reshape(-1, 1)[pairs[:-1]], scores.new_full((1, 1), REJECTED)])
        scores, order = top_k(scores.flatten(), topk, sorted=False)  # NMS sorts by itself
        pairs = pairs[order]
        return scores, pairs % num_classes, torch.div(pairs, num_classes, rounding_mode='floor')

    @staticmethod
    def _sliced(scores: Tensor, score_thr: float, topk: int) -> tuple[Tensor, Tensor, Tensor]:
        pairs = (scores > score_thr).nonzero()
        scores, order = scores[pairs[:, 0], pairs[:, 1]].sort(descending=True)
        keep, labels = pairs[order[:topk]].unbind(dim=1)  # what a limit of 0 or below means in the original
        return scores[:topk], labels, keep


@REWRITERS.register_module()
class BBoxPostProcess(FunctionRewriter):
    """Runs the head's own post-processing without its branch on traced values.

    ``if not valid_mask.all()`` would be frozen as it fell; boxes under ``min_bbox_size`` are given the score REJECTED
    instead, after the rescaling that comes first in the original. ``max_per_img`` becomes a limit of NMS itself,
    whose result is sorted.
    """

    target = 'mmdet.models.dense_heads.base_dense_head.BaseDenseHead._bbox_post_process'

    def __call__(
        self,
        origin: Callable,
        head: Any,
        results: Any,
        cfg: Any,
        rescale: bool = False,
        with_nms: bool = True,
        img_meta: dict | None = None,
    ) -> Any:
        from mmdet.structures.bbox import get_box_wh, scale_boxes

        cfg = copy.deepcopy(cfg)
        min_size = cfg.get('min_bbox_size', -1)
        if min_size >= 0:
            if rescale:
                results.bboxes = scale_boxes(results.bboxes, inverse_scale(img_meta))
                rescale = False
            width, height = get_box_wh(results.bboxes)
            large = (width > min_size) & (height > min_size)
            results.scores = reject(results.scores, large)
            cfg.min_bbox_size = -1
            note_rejected(True)
        if with_nms and cfg.get('nms') is not None:
            cfg.nms.update(limited_nms(cfg.nms, cfg.max_per_img))
        return origin(head, results, cfg, rescale=rescale, with_nms=with_nms, img_meta=img_meta)


@REWRITERS.register_module()
class RPNPostProcess(BBoxPostProcess):
    """:class:`BBoxPostProcess` of an RPN, whose labels, ``new_zeros(len(results))``, would have one image's length
    frozen in.
    """

    target = 'mmdet.models.dense_heads.rpn_head.RPNHead._bbox_post_process'

    def __call__(self, origin: Callable, head: Any, results: Any, *args: Any, **kwargs: Any) -> Any:
        results = super().__call__(origin, head, results, *args, **kwargs)
        results.labels = torch.zeros_like(results.scores, dtype=torch.long)
        return results


@REWRITERS.register_module()
class RPNPreselect(FunctionRewriter):
    """Hands each level's ``nms_pre`` best anchors to the original, which then has nothing left to sort.

    Its ``if 0 < nms_pre < scores.shape[0]`` would be frozen as it fell for one image size, and its ``sort`` is a TopK
    of all anchors. The selection ranks by the same scores; the original gets features of the same layout with k x 1
    positions.
    """

    target = 'mmdet.models.dense_heads.rpn_head.RPNHead._predict_by_feat_single'

    def __call__(
        self,
        origin: Callable,
        head: Any,
        cls_score_list: list[Tensor],
        bbox_pred_list: list[Tensor],
        score_factor_list: list[Tensor],
        mlvl_priors: list[Tensor],
        img_meta: dict,
        cfg: Any,
        rescale: bool = False,
        with_nms: bool = True,
    ) -> Any:
        nms_pre = (head.test_cfg if cfg is None else cfg).get('nms_pre', -1)
        if nms_pre > 0:
            levels = [
                self._select(head, nms_pre, *level)
                for level in zip(cls_score_list, bbox_pred_list, mlvl_priors, strict=True)
            ]
            cls_score_list, bbox_pred_list, mlvl_priors = map(list, zip(*levels, strict=True))
        return origin(
            head,
            cls_score_list,
            bbox_pred_list,
            score_factor_list,
            mlvl_priors,
            img_meta,
            cfg,
            rescale=rescale,
            with_nms=with_nms,
        )

    @staticmethod
    def _select(
        head: Any, nms_pre: int, cls_score: Tensor, bbox_pred: Tensor, priors: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        cls_score = cls_score.permute(1, 2, 0).reshape(-1, head.cls_out_channels)
        bbox_pred = bbox_pred.permute(1, 2, 0).reshape(-1, head.bbox_coder.encode_size)
        # by the scores, not the logits: where the sigmoid saturates, only scores tie as the original's do
        scores = cls_score[:, 0].sigmoid() if head.use_sigmoid_cls else cls_score.softmax(-1)[:, 0]
        _, inds = top_k(scores, nms_pre)
        return cls_score[inds].t()[..., None], bbox_pred[inds].t()[..., None], priors[inds]
