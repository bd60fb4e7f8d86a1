"""Which levels of a pyramid a detector's boxes come from, recorded while PyTorch answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ..check.answers import Levels, NmsCall
from ..rewriting import FunctionRewriter


class RecordFilter(FunctionRewriter):
    """Counts the scores that a threshold rejects, where the libraries do it in a function of their own, and how many
    candidates each call, one per level, leaves.
    """

    target = 'mmdet.models.utils.misc.filter_scores_and_topk'

    def __init__(self) -> None:
        self.count: int | None = None
        self.kept: list[int] = []
        self.places: list[np.ndarray] = []
        self.cut: bool | None = None
        """``nms_pre`` left out candidates that had passed the threshold."""

    def __call__(self, origin: Callable, scores: Tensor, score_thr: float, *args: Any, **kwargs: Any) -> Any:
        rejected = int((scores <= score_thr).sum())
        result = origin(scores, score_thr, *args, **kwargs)
        self.count = (self.count or 0) + rejected
        self.kept.append(len(result[0]))
        self.places.append(result[2].cpu().numpy())
        self.cut = bool(self.cut) or scores.numel() - rejected > len(result[0])
        return result


class RecordCandidates(FunctionRewriter):
    """Score, label and level of every candidate of a dense head, before boxes without extent are dropped."""

    target = 'mmdet.models.dense_heads.base_dense_head.BaseDenseHead._bbox_post_process'

    def __init__(self, filtered: RecordFilter) -> None:
        self._filtered = filtered
        self.levels: Levels | None = None

    def __call__(self, origin: Callable, head: Any, results: Any, *args: Any, **kwargs: Any) -> Any:
        counts = self._filtered.kept
        if counts and 'labels' in results and sum(counts) == len(results.scores):
            scores = results.scores * results.score_factors if 'score_factors' in results else results.scores
            self.levels = Levels(
                len(counts),
                np.repeat(np.arange(len(counts)), counts),
                scores.float().cpu().numpy(),
                results.labels.cpu().numpy(),
                np.concatenate(self._filtered.places),
            )
        return origin(head, results, *args, **kwargs)


class RecordMulticlass(FunctionRewriter):
    """Counts the scores that ``multiclass_nms`` rejects itself, and keeps its candidates."""

    target = 'mmdet.models.layers.bbox_nms.multiclass_nms'

    def __init__(self) -> None:
        self.count: int | None = None
        self._scores: np.ndarray | None = None
        self._accepted: np.ndarray | None = None

    def __call__(
        self, origin: Callable, boxes: Tensor, scores: Tensor, score_thr: float, *args: Any, **kwargs: Any
    ) -> Any:
        self._scores = scores[:, :-1].float().cpu().numpy()  # the last column is the background's
        self._accepted = (scores[:, :-1] > score_thr).cpu().numpy()
        self.count = (self.count or 0) + int((~self._accepted).sum())
        return origin(boxes, scores, score_thr, *args, **kwargs)

    def levels(self, calls: Sequence[NmsCall]) -> Levels | None:
        """The candidates by the level that their proposal comes from; None where that is not known.

        Args:
            calls: all of the run, of which the first is the RPN's.
        """
        if self._scores is None or len(calls) < 2 or calls[0].kept is None or not len(calls[0].idxs):
            return None
        of_proposals = calls[0].idxs[calls[0].kept][: len(self._scores)]
        if len(of_proposals) < len(self._scores):
            return None
        proposals, labels = self._accepted.nonzero()
        scores = self._scores[proposals, labels]
        return Levels(int(calls[0].idxs.max()) + 1, of_proposals[proposals], scores, labels, proposals)


class RecordRoILevels(FunctionRewriter):
    """How many RoIs each level of the pyramid is asked for."""

    target = 'mmdet.models.roi_heads.roi_extractors.single_level_roi_extractor.SingleRoIExtractor.map_roi_levels'

    def __init__(self) -> None:
        self.rois: list[int] = []

    def __call__(self, origin: Callable, extractor: Any, rois: Tensor, num_levels: int) -> Tensor:
        levels = origin(extractor, rois, num_levels)
        self.rois += [0] * (num_levels - len(self.rois))
        for level in range(num_levels):
            self.rois[level] += int((levels == level).sum())
        return levels
