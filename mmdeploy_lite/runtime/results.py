"""What a file answers for one image."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

INSTANCE_OFFSET = 1000
"""What a file multiplies an object's number with, as mmdet does."""


@dataclass(frozen=True)
class Detections:
    """Objects of one image, best first where the model sorts them.

    Attributes:
        bboxes: (K, 4) float32, x1 y1 x2 y2 in pixels.
        scores: (K,) float32.
        labels: (K,) int64, from 0.
        masks: (K, h, w) bool, or None where the model has none.
        shape: (h, w) of the pixels that all of this is in: those of the original, or where the file was exported with
            ``rescale=False``, those of the image as the pipeline leaves it.
        classes: name of each label that the model knows.
    """

    bboxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: np.ndarray | None
    shape: tuple[int, int]
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def names(self) -> list[str]:
        """Class name of each object."""
        return [class_name(self.classes, int(label)) for label in self.labels]


@dataclass(frozen=True)
class SegMap:
    """The class of every pixel of one image.

    Attributes:
        seg_map: (h, w) int64, from 0.
        shape: (h, w), see :class:`Detections`.
        classes: name of each class.
        scores: (C, h, w) float32, what a file with ``seg_logits`` or ``seg_probs`` answers; None for one with
            ``seg_map``.
    """

    seg_map: np.ndarray
    shape: tuple[int, int]
    classes: tuple[str, ...] = ()
    scores: np.ndarray | None = None

    @property
    def areas(self) -> dict[str, int]:
        """Number of pixels of each class that is there, largest first."""
        labels, counts = np.unique(self.seg_map, return_counts=True)
        order = np.argsort(-counts, kind='stable')
        return {class_name(self.classes, int(labels[index])): int(counts[index]) for index in order}


@dataclass(frozen=True)
class PanopticMap(SegMap):
    """The class of every pixel of one image, and which object of its image it belongs to.

    Attributes:
        numbers: (h, w) int64, from 1; 0 where the class has no objects (sky, grass), or there is no class:
            ``seg_map`` is then the number of classes.
    """

    numbers: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    @classmethod
    def of(cls, panoptic_seg: np.ndarray, shape: tuple[int, int], classes: tuple[str, ...]) -> PanopticMap:
        """From what a file answers: (h, w) int64, ``class + 1000 * number``."""
        return cls(panoptic_seg % INSTANCE_OFFSET, shape, classes, None, panoptic_seg // INSTANCE_OFFSET)

    @property
    def segments(self) -> list[tuple[str, int, int]]:
        """Class name, number and area in pixels of each object and each class without objects that is there."""
        ids, counts = np.unique(self.seg_map + self.numbers * INSTANCE_OFFSET, return_counts=True)
        return [
            (class_name(self.classes, int(value % INSTANCE_OFFSET)), int(value // INSTANCE_OFFSET), int(count))
            for value, count in zip(ids, counts, strict=True)
        ]


def class_name(classes: tuple[str, ...], label: int) -> str:
    """The name of a label, or ``class_<label>`` where there is none."""
    return classes[label] if 0 <= label < len(classes) else f'class_{label}'
