"""What a model answered for one image, and what PyTorch itself shows about how sure that answer is.

Answers (:class:`Detections`, :class:`SegMap`, :class:`RawTensors`) come from both sides, PyTorch and the backend.
Evidence (:class:`DetectionEvidence`, :class:`SegEvidence`) comes from the PyTorch run alone: a backend cannot excuse
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np


def _require_array(value: object, what: str, kinds: str, ndim: int | None) -> np.ndarray:
    """Check one array's type, dtype kind and number of dimensions.

    Args:
        value: What should be an array.
        what: Its name in the message.
        kinds: Accepted ``dtype.kind`` letters.
        ndim: Required number of dimensions; None accepts any.

    Raises:
        ValueError: It is not such an array.
    """
    if not isinstance(value, np.ndarray):
        raise ValueError(f'{what} must be a numpy array, got {type(value).__name__}')
    if value.dtype.kind not in kinds:
        wanted = {'f': 'floating point', 'iu': 'integer', 'b': 'bool'}.get(kinds, 'numeric')
        raise ValueError(f'{what} must be {wanted}, got {value.dtype}')
    if ndim is not None and value.ndim != ndim:
        raise ValueError(f'{what} must have {ndim} dimensions, got shape {value.shape}')
    return value


def _require_finite(value: np.ndarray, what: str) -> None:
    """Raise ValueError naming the first entry that is NaN or infinite."""
    if value.dtype.kind != 'f':
        return
    bad = ~np.isfinite(value)
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f'{what} has {int(bad.sum())} values that are not finite, the first at {index}: {value[index]}'
        )


@dataclass
class Detections:
    """Boxes of one image, in original pixels (or in ``image`` pixels when the model runs with ``rescale=False``).

    Attributes:
        bboxes: (K, 4) float32, x1 y1 x2 y2 in pixels.
        scores: (K,) float32.
        labels: (K,) int64, from 0.
        masks: (K, H, W) bool, or None where the task has no masks.
    """

    bboxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.scores)

    @classmethod
    def empty(cls, mask_size: tuple[int, int] | None = None) -> Detections:
        """No detection; with ``mask_size`` (h, w) in pixels, no mask of that size either."""
        masks = None if mask_size is None else np.zeros((0, *mask_size), dtype=bool)
        return cls(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64), masks)

    def validate(self, num_classes: int | None = None) -> None:
        """Check shapes, dtypes and values.

        Args:
            num_classes: Labels must be below it; None only asks that they are not negative.

        Raises:
            ValueError: A wrong shape or dtype, a value that is not finite, or a label out of range.
        """
        _require_array(self.scores, 'scores', 'f', 1)
        _require_array(self.bboxes, 'bboxes', 'f', 2)
        _require_array(self.labels, 'labels', 'iu', 1)
        count = len(self.scores)
        if self.bboxes.shape != (count, 4):
            raise ValueError(
                f'bboxes must have shape ({count}, 4) as there are {count} scores, got {self.bboxes.shape}'
            )
        if self.labels.shape != (count,):
            raise ValueError(f'labels must have shape ({count},) as there are {count} scores, got {self.labels.shape}')
        if self.masks is not None:
            _require_array(self.masks, 'masks', 'b', 3)
            if len(self.masks) != count:
                raise ValueError(f'there are {len(self.masks)} masks for {count} scores')
        _require_finite(self.scores, 'scores')
        _require_finite(self.bboxes, 'bboxes')
        outside = self.labels < 0 if num_classes is None else (self.labels < 0) | (self.labels >= num_classes)
        if outside.any():
            limit = 'not be negative' if num_classes is None else f'lie in 0..{num_classes - 1}'
            raise ValueError(f'labels must {limit}, got {int(self.labels[outside][0])}')


@dataclass
class SegMap:
    """Class index of every pixel of one image.

    Attributes:
        seg_map: (H, W) int64, in original pixels (or ``image`` pixels when ``rescale=False``).
    """

    seg_map: np.ndarray

    @property
    def classes(self) -> np.ndarray:
        """(H, W) int64, the class of every pixel."""
        return self.seg_map

    def validate(self, num_classes: int | None = None) -> None:
        """Check shape, dtype and values.

        Args:
            num_classes: Classes must be below it (255, mmseg's ignore index, is no prediction); None asks nothing.

        Raises:
            ValueError: A wrong shape or dtype, or a class out of range.
        """
        _require_array(self.seg_map, 'seg_map', 'iu', 2)
        if num_classes is None or not self.seg_map.size:
            return
        low, high = int(self.seg_map.min()), int(self.seg_map.max())
        if low < 0 or high >= num_classes:
            raise ValueError(f'seg_map classes must lie in 0..{num_classes - 1}, got {low if low < 0 else high}')


@dataclass
class PanopticMap(SegMap):
    """What every pixel of one image belongs to, as mmdet writes it: ``category + number * 1000``.

    Attributes:
        seg_map: (H, W) int64, in original pixels (or ``image`` pixels when ``rescale=False``). The number counts the
            objects of the image from 1; of a category without objects (sky, grass) it is 0. The number of categories
            stands where the model answers none.
    """

    @property
    def classes(self) -> np.ndarray:
        return self.seg_map % 1000


@dataclass
class RawTensors:
    """Tensors of one image compared number by number: logits, probabilities, raw heads.

    Attributes:
        tensors: Output name to array of any shape, float or integer.
    """

    tensors: dict[str, np.ndarray]

    def validate(self) -> None:
        """Check types and values.

        Raises:
            ValueError: A value that is no numeric array, or holds a value that is not finite.
        """
        for name, value in self.tensors.items():
            _require_array(value, name, 'fiub', None)
            _require_finite(value, name)


@dataclass
class NmsCall:
    """Inputs of one ``batched_nms`` call of the reference run: every candidate that competed, kept or not.

    Attributes:
        boxes: (N, 4) float32, x1 y1 x2 y2, before any class offset, in the pixels NMS ran in.
        scores: (N,) float32.
        idxs: (N,) int64, the group (class label or pyramid level) within which boxes compete.
        iou_threshold: A kept box removes those of lower score whose IoU with it is above.
        class_agnostic: All boxes compete, whatever their group.
        max_num: At most so many are kept; None or negative means all.
        score_cuts: Thresholds on these very scores, applied by this call or just before it.
        class_offset: Groups were kept apart by shifting each by ``idx * (max coordinate + 1)``, as mmcv does below its
            ``split_thr``. Boxes with negative coordinates then reach into the group before, so it changes results.
            False means one NMS per group.
        kept: (K,) int64, the candidates that it kept, best first; None when that was not recorded.
    """

    boxes: np.ndarray
    scores: np.ndarray
    idxs: np.ndarray
    iou_threshold: float
    class_agnostic: bool = False
    max_num: int | None = None
    score_cuts: tuple[float, ...] = ()
    class_offset: bool = True
    kept: np.ndarray | None = None

    def validate(self) -> None:
        """Check shapes and dtypes.

        Values may be infinite: a box of an untrained model can be, and PyTorch goes on.

        Raises:
            ValueError: A wrong shape or dtype.
        """
        _require_array(self.boxes, 'boxes of an NMS call', 'f', 2)
        _require_array(self.scores, 'scores of an NMS call', 'f', 1)
        _require_array(self.idxs, 'idxs of an NMS call', 'iu', 1)
        count = len(self.scores)
        if self.boxes.shape != (count, 4) or self.idxs.shape != (count,):
            raise ValueError(
                'an NMS call needs boxes (N, 4), scores (N,) and idxs (N,), got '
                f'{self.boxes.shape}, {self.scores.shape} and {self.idxs.shape}'
            )


@dataclass
class Levels:
    """Candidates of a detector, by the level of the pyramid that they, or their proposals, come from.

    Attributes:
        count: Number of levels.
        levels: (N,) int, from 0, the finest.
        scores: (N,) float32.
        labels: (N,) int64.
        places: (N,) int64, which place of its level (an anchor, a point), or which proposal, each is of.
    """

    count: int
    levels: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    places: np.ndarray


@dataclass
class DetectionEvidence:
    """How sure PyTorch is of one image's detections. All of it comes from the reference run.

    Attributes:
        score_thrs: Thresholds that the *final* scores had to pass. (A threshold on class scores that are multiplied
            with a centerness afterwards does not belong here: nothing is known of the final score at which it cuts.)
        max_per_img: Cap on the number of detections; None when there is none.
        nms_calls: NMS calls in order; the last one produced the detections. Empty for models without NMS, where an
            entry with ``iou_threshold=1`` may still list the candidates from which the cap picked (then ties at the
            K-th place can be told from boxes that moved).
        scale: (sx, sy) that brings the detections' pixels to the pixels of the last call: ``box_nms = box * scale``.
        float64: The same model's answer in double precision, in the detections' pixels, or a function that returns it
            (or None). A function is called at most once, and only when something else did not explain a difference.
        moved: A function that returns the model's answers where less than a rounding of image or weights is moved: what
            differs between them is undecided, such as which proposals are the best 900 in a model that goes on with
            those, or a mask's pixel. Called when float64 does not explain all that differs.
        mask_undecided: (K, H, W) bool for the K reference detections: pixels where \\|p - threshold\\| is within
            tolerance.
        mask_rounded: A function that returns such an array of pixels where \\|p - threshold\\| is within twice
            PyTorch's own rounding, which float64 shows. Called at most once, and only when a clear pixel differs. A
            mask moves with its box: where the box rounds, and equal boxes may differ by more than that, the
            probabilities at the mask's edge change by more than the tolerance.
        rejected: How many candidates the score thresholds rejected before NMS; None when that was not recorded. It
            excuses nothing and only tells whether the images exercised the threshold.
        levels: Which level of the pyramid each candidate came from; None when that was not recorded. As the next two,
            it excuses nothing and tells what the images exercised.
        rois_per_level: How many RoIs each level was asked for; empty for models without.
        preselected: ``nms_pre`` left out candidates that had passed the threshold; None when that was not recorded.
    """

    score_thrs: tuple[float, ...] = ()
    max_per_img: int | None = None
    nms_calls: list[NmsCall] = field(default_factory=list)
    scale: tuple[float, float] = (1.0, 1.0)
    float64: Detections | Callable[[], Detections | None] | None = None
    moved: Callable[[], Iterable[Detections]] | None = None
    mask_undecided: np.ndarray | None = None
    mask_rounded: Callable[[], np.ndarray | None] | None = None
    rejected: int | None = None
    levels: Levels | None = None
    rois_per_level: tuple[int, ...] = ()
    preselected: bool | None = None

    def float64_answer(self) -> Detections | None:
        """The double-precision answer, run on the first call and kept."""
        if callable(self.float64):
            self.float64 = self.float64()
        return self.float64


@dataclass
class SegEvidence:
    """How sure PyTorch is of one image's label map.

    Attributes:
        undecided: (H, W) bool: pixels where the gap between the two best logits (for one channel: \\|p - threshold\\|)
            is within tolerance of the range.
        float64: (H, W) integer label map in double precision, or a function that returns it (or None), called at most
            once and only when a clear pixel differs.
        unstable: a function that returns (H, W) bool: pixels where PyTorch itself is undecided, since its logits come
            out as far away as the two best are from each other where less than a rounding of image or weights is moved.
            Called when float64 does not explain all that differs.
    """

    undecided: np.ndarray | None = None
    float64: np.ndarray | Callable[[], np.ndarray | None] | None = None
    unstable: Callable[[], np.ndarray] | None = None

    def float64_answer(self) -> np.ndarray | None:
        """The double-precision label map, run on the first call and kept."""
        if callable(self.float64):
            self.float64 = self.float64()
        return self.float64
