"""Which mask pixels PyTorch is sure of, recorded while it answers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..check.answers import Detections
from ..check.tolerance import Tolerance
from ..rewriting import FunctionRewriter

MASK_THRESHOLDS = ('mask_thr_binary', 'mask_thr')
"""Names in test configs of what a mask's probability must pass; YOLACT has both, and reads the second."""


class RecordPoints(FunctionRewriter):
    """Keeps which points of PointRend's masks it may refine or not: their doubt is that of the last one it refines.

    A point that is not refined keeps another probability, so rounding may move a pixel far from where it was.

    Args:
        tolerance: part of the logits' range.
    """

    target = 'mmdet.models.roi_heads.mask_heads.mask_point_head.MaskPointHead.get_roi_rel_points_test'

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance
        self.unsure: Tensor | None = None

    def __call__(self, origin: Callable, head: Any, mask_preds: Tensor, label_preds: Tensor, cfg: Any) -> Any:
        from mmdet.models.utils.point_sample import get_uncertainty

        doubt = get_uncertainty(mask_preds, label_preds).float()
        ranked = doubt.flatten(1).sort(dim=1, descending=True)[0]
        count = min(cfg.subdivision_num_points, ranked.shape[1])
        unsure = torch.zeros_like(doubt)
        if count < ranked.shape[1]:
            last = ranked[:, count - 1 : count + 1].mean(dim=1)[:, None, None, None]
            spread = mask_preds.flatten(1).amax(dim=1) - mask_preds.flatten(1).amin(dim=1)
            unsure = ((doubt - last).abs() <= self.tolerance * spread[:, None, None, None]).float()
        if self.unsure is not None and len(self.unsure) == len(unsure):  # resizing spreads a point to its neighbours
            before = F.interpolate(F.max_pool2d(self.unsure, 3, 1, 1), size=unsure.shape[-2:])
            unsure = torch.maximum(unsure, before)
        self.unsure = unsure
        return origin(head, mask_preds, label_preds, cfg)


class RecordPaste(FunctionRewriter):
    """Keeps the pasted mask probabilities, each only where it was pasted."""

    target = 'mmdet.models.roi_heads.mask_heads.fcn_mask_head._do_paste_mask'

    def __init__(self, threshold: float, tolerance: float, points: RecordPoints | None = None) -> None:
        self.threshold, self.tolerance = threshold, tolerance
        self.points = points
        self.unsure: list[np.ndarray] = []
        self.size = (0, 0)
        self.pasted: list[tuple[np.ndarray, tuple[slice, ...]]] = []
        self.slopes: list[float] = []

    def __call__(
        self, origin: Callable, masks: Tensor, boxes: Tensor, img_h: Any, img_w: Any, skip_empty: bool = True
    ) -> tuple:
        # the original's grid of pixels is float32 whatever the masks are, and refuses masks in float64
        pasted, place = origin(masks.float(), boxes.float(), img_h, img_w, skip_empty=skip_empty)
        self.size = int(img_h), int(img_w)
        if self.points is not None and self.points.unsure is not None:
            rows = self.points.unsure[len(self.pasted) : len(self.pasted) + len(masks)]
            self.unsure += list(origin(rows, boxes.float(), img_h, img_w, skip_empty=skip_empty)[0].cpu().numpy() > 0)
        self.pasted += [(mask, place) for mask in pasted.cpu().numpy()]
        self.slopes += map(_slope, masks.float().cpu().numpy()[:, 0], boxes.float().cpu().numpy())
        return pasted, place

    def is_of(self, answer: Detections) -> bool:
        """Whether these are that answer's masks."""
        return len(self.pasted) == len(answer)

    def full(self, row: int) -> np.ndarray:
        """(H, W) float32 probabilities of one mask, zero where it was not pasted."""
        full = np.zeros(self.size, np.float32)
        mask, place = self.pasted[row]
        full[place] = mask
        return full

    def undecided(self, margins: np.ndarray | None = None) -> np.ndarray:
        """(K, H, W) bool, where a probability lies within tolerance, or (K,) ``margins``, of the threshold."""
        margins = np.full(len(self.pasted), self.tolerance) if margins is None else margins
        undecided = np.zeros((len(self.pasted), *self.size), bool)
        for row, (mask, place) in enumerate(self.pasted):
            undecided[row][place] = np.abs(mask - self.threshold) <= margins[row]
            if self.unsure:
                undecided[row][place] |= self.unsure[row]
        return undecided

    def rounding(self, answer: Detections, double: Detections, pasted: RecordPaste) -> np.ndarray:
        """(K,) by how much rounding moves each mask's probabilities, as PyTorch shows it.

        Two things count: how far float32 is from float64 in that mask, and how far in any box of the image, for a mask
        moves with its box and one box's rounding is chance.

        Args:
            answer: in float32, whose masks were recorded here.
            double: in float64.
            pasted: recorded while that was made.
        """
        moved, box = np.zeros(len(answer)), 0.0
        if not len(double) or self.size != pasted.size:
            return moved
        for row in range(len(answer)):
            away = np.abs(double.bboxes - answer.bboxes[row]).max(axis=1)
            away[double.labels != answer.labels[row]] = np.inf
            nearest = int(away.argmin())
            if away[nearest] <= Tolerance().box(self.size):
                box = max(box, float(away[nearest]))
                moved[row] = np.abs(self.full(row) - pasted.full(nearest)).max()
        return np.maximum(moved, box * np.array(self.slopes))


def _slope(mask: np.ndarray, box: np.ndarray) -> float:
    """By how much a probability changes at most when its mask (h, w) moves by one pixel with its box."""
    edged = np.pad(mask, 1)
    (x1, y1, x2, y2), (rows, columns) = box, mask.shape
    down = np.abs(np.diff(edged, axis=0)).max() * rows / max(y2 - y1, 1e-3)
    return float(down + np.abs(np.diff(edged, axis=1)).max() * columns / max(x2 - x1, 1e-3))


class RecordQueries(FunctionRewriter):
    """Hands on the mask probabilities of the queries that MaskFormer's instances are, in their order.

    Args:
        record: where they go.
    """

    target = (
        'mmdet.models.seg_heads.panoptic_fusion_heads.maskformer_fusion_head.MaskFormerFusionHead.instance_postprocess'
    )

    def __init__(self, record: RecordThreshold) -> None:
        self.record = record

    def __call__(self, origin: Callable, head: Any, mask_cls: Tensor, mask_pred: Tensor) -> Any:
        scores = mask_cls.softmax(dim=-1)[:, :-1].flatten()
        best = scores.topk(head.test_cfg.get('max_per_image', 100), sorted=False)[1]
        queries = (best // head.num_classes)[best % head.num_classes < head.num_things_classes]
        self.record.probabilities = mask_pred[queries].sigmoid().cpu().numpy()
        return origin(head, mask_cls, mask_pred)


class RecordThreshold:
    """Takes the place of a mask threshold in a head's test config and keeps what it was last compared with.

    Heads that answer masks of the whole image have no function of their own for that: they compare the probabilities,
    resized to the original image, with the threshold.

    Args:
        threshold: the number it stands for.
        tolerance: of a probability.
    """

    def __init__(self, threshold: float, tolerance: float) -> None:
        self.threshold, self.tolerance = threshold, tolerance
        self.probabilities: np.ndarray | None = None

    def __deepcopy__(self, memo: Any) -> RecordThreshold:
        return self  # heads copy their config, and must not copy this

    def __float__(self) -> float:
        return self.threshold

    def __gt__(self, other: Any) -> Any:
        return other < self.threshold

    def __ge__(self, other: Any) -> Any:
        return other <= self.threshold

    def __lt__(self, other: Any) -> Any:
        """``probabilities > threshold``."""
        return self._compared(other, torch.gt)

    def __le__(self, other: Any) -> Any:
        """``probabilities >= threshold``."""
        return self._compared(other, torch.ge)

    def _compared(self, other: Any, compare: Callable[[Any, float], Any]) -> Any:
        if not isinstance(other, Tensor):
            return compare(torch.as_tensor(other), self.threshold).item()
        if other.dim() >= 3:
            self.probabilities = other.detach().cpu().numpy().reshape(-1, *other.shape[-2:])
        return compare(other, self.threshold)

    @contextlib.contextmanager
    def in_place_of_thresholds(self, model: nn.Module) -> Iterator[None]:
        """Stand in the test configs of the model's heads."""
        configs = [getattr(getattr(model, name, None), 'test_cfg', None) for name in ('mask_head', 'bbox_head')]
        before = [(cfg, key, cfg[key]) for cfg in configs for key in MASK_THRESHOLDS if cfg and key in cfg]
        try:
            for cfg, key, value in before:
                if float(value) == self.threshold:
                    cfg[key] = self
            yield
        finally:
            for cfg, key, value in before:
                cfg[key] = value

    def is_of(self, answer: Detections) -> bool:
        """Whether these are that answer's masks."""
        found, masks = self.probabilities, answer.masks
        return found is not None and masks is not None and found.shape == masks.shape

    def undecided(self, margins: np.ndarray | None = None) -> np.ndarray:
        """(K, H, W) bool, where a probability lies within tolerance, or (K,) ``margins``, of the threshold."""
        margins = self.tolerance if margins is None else margins[:, None, None]
        return np.abs(self.probabilities - self.threshold) <= margins

    def rounding(self, answer: Detections, double: Detections, recorded: RecordThreshold) -> np.ndarray:
        """(K,) by how much float32 is from float64 in each mask's probabilities.

        Args:
            answer: in float32, whose masks were recorded here.
            double: in float64.
            recorded: while that was made.
        """
        moved = np.zeros(len(answer))
        if not len(double) or not recorded.is_of(double) or answer.masks.shape[1:] != double.masks.shape[1:]:
            return moved
        for row in range(len(answer)):
            away = np.abs(double.scores - answer.scores[row])
            alike = np.flatnonzero((double.labels == answer.labels[row]) & (away <= Tolerance().score))
            if not len(alike):
                continue
            # SOLO has no boxes, and those of Mask2Former move with a pixel of their masks: the nearest, however far
            distance = np.abs(double.bboxes[alike] - answer.bboxes[row]).max(axis=1)
            nearest = alike[np.lexsort((away[alike], distance))[0]]
            moved[row] = np.abs(self.probabilities[row] - recorded.probabilities[nearest]).max()
        return moved
