"""Primitives of anchors that the network itself makes: Cascade RPN and Guided Anchoring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..export.operators import pretend_some
from ..export.tracing import is_symbolic
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter, RewriteContext
from .candidates import LimitCandidates


@REWRITERS.register_module()
class ValidFlags(FunctionRewriter):
    """Which positions of a feature map the image covers, by comparisons; the original's ``int(np.ceil(h / stride))``
    freezes one image's size.
    """

    target = 'mmdet.models.task_modules.prior_generators.anchor_generator.AnchorGenerator.valid_flags'

    def __call__(
        self,
        origin: Callable,
        generator: Any,
        featmap_sizes: Sequence[Any],
        pad_shape: Sequence[Any],
        device: Any = 'cuda',
    ) -> list[Tensor]:
        flags = []
        for stride, anchors, (height, width) in zip(
            generator.strides, generator.num_base_anchors, featmap_sizes, strict=True
        ):
            # i < ceil(size / stride), in whole numbers
            rows = torch.arange(height, device=device) * stride[1] < pad_shape[0]
            columns = torch.arange(width, device=device) * stride[0] < pad_shape[1]
            inside = rows[:, None] & columns
            flags.append(inside.reshape(-1, 1).expand(-1, anchors).reshape(-1))
        return flags


@REWRITERS.register_module()
class AnchorPreselect(LimitCandidates):
    """``if scores.shape[0] > nms_pre`` of heads that select anchors themselves."""

    target = (
        'mmdet.models.dense_heads.cascade_rpn_head.StageCascadeRPNHead._predict_by_feat_single',
        'mmdet.models.dense_heads.guided_anchor_head.GuidedAnchorHead._predict_by_feat_single',
        'mmdet.models.dense_heads.paa_head.PAAHead._predict_by_feat_single',
    )


class _NotAll(FunctionRewriter):
    """``if not mask.all(): x = x[mask]`` may always do what it does: all of x is x."""

    target = 'torch.Tensor.all'

    def __call__(self, origin: Callable, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        return False


@REWRITERS.register_module()
class GARPNPredict(LimitCandidates):
    """As :class:`AnchorPreselect`; also ``min(max_per_img, n)`` and the filter of small boxes."""

    target = 'mmdet.models.dense_heads.ga_rpn_head.GARPNHead._predict_by_feat_single'

    @property
    def limits(self) -> tuple[str, ...]:
        """Under ``torch.export`` the least of two is a symbol."""
        return ('nms_pre',) if is_symbolic() else ('nms_pre', 'max_per_img')

    def __call__(self, origin: Callable, head: Any, *args: Any, **kwargs: Any) -> Any:
        bound = self.limited(origin, head, *args, **kwargs)
        with RewriteContext({'all': _NotAll()}):
            return origin(*bound.args, **bound.kwargs)


@REWRITERS.register_module()
class GuidedAnchors(FunctionRewriter):
    """The original, which while tracing always finds a location to keep.

    Levels where nothing passes ``loc_filter_thr`` are skipped by the heads, and would be missing in the graph.
    """

    target = 'mmdet.models.dense_heads.guided_anchor_head.GuidedAnchorHead._get_guided_anchors_single'

    def __call__(
        self, origin: Callable, head: Any, squares: Tensor, shape_pred: Tensor, loc_pred: Tensor, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return origin(head, squares, shape_pred, pretend_some(loc_pred), **kwargs)
