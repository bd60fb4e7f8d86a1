"""Primitives of mmdet's YOLOX head: the priors that pass the threshold, by their numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..export.operators import REJECTED
from ..export.tracing import note_rejected
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter


class _Passing:
    """A threshold whose comparison with scores gives the numbers of those that pass, and the first's once more: so
    there is always one.
    """

    def __init__(self, value: float) -> None:
        self.value = value

    def __le__(self, scores: Tensor) -> Tensor:
        rows = (scores >= self.value).nonzero().squeeze(1)
        return torch.cat([rows, rows.new_zeros(1)])


@REWRITERS.register_module()
class YOLOXPredict(FunctionRewriter):
    """Takes the priors that pass ``score_thr`` by their numbers, and one more for NMS to drop.

    Of none the original returns early, which would be frozen.
    """

    target = 'mmdet.models.dense_heads.yolox_head.YOLOXHead.predict_by_feat'

    def __call__(self, origin: Callable, head: Any, *args: Any, cfg: Any = None, **kwargs: Any) -> Any:
        cfg = copy.deepcopy(head.test_cfg if cfg is None else cfg)
        cfg.one_too_many, cfg.score_thr = True, _Passing(cfg.score_thr)
        return origin(head, *args, cfg=cfg, **kwargs)


@REWRITERS.register_module()
class YOLOXPostProcess(FunctionRewriter):
    """Gives the row that :class:`YOLOXPredict` added the score REJECTED."""

    target = 'mmdet.models.dense_heads.yolox_head.YOLOXHead._bbox_post_process'

    def __call__(self, origin: Callable, head: Any, results: Any, cfg: Any, *args: Any, **kwargs: Any) -> Any:
        if cfg.get('one_too_many'):
            scores = results.scores[:-1, None]
            # of two axes: the exporter takes a concatenation of one for a shape, which has no REJECTED
            results.scores = torch.cat([scores, scores.new_full((1, 1), REJECTED)]).flatten()
            note_rejected(True)
        return origin(head, results, cfg, *args, **kwargs)
