"""Compare what the backend answered with what PyTorch answered, for one image."""

from __future__ import annotations

from mmdeploy_lite.check.answers import DetectionEvidence, Detections, RawTensors, SegEvidence, SegMap
from mmdeploy_lite.check.comparison import Comparison, Unmatched
from mmdeploy_lite.check.tolerance import Tolerance

__all__ = ['Comparison', 'Unmatched', 'compare_detections', 'compare_seg_map', 'compare_tensors']


def compare_detections(
    ref: Detections,
    out: Detections,
    image_size: tuple[int, int],
    tol: Tolerance | None = None,
    evidence: DetectionEvidence | None = None,
    *,
    num_classes: int | None = None,
) -> Comparison:
    """Compare detections as sets.

    Args:
        ref: PyTorch's answer.
        out: The backend's answer, in the same pixels.
        image_size: (h, w) of the image whose pixels the boxes are in.
        tol: Tolerances; None takes the defaults.
        evidence: What PyTorch shows to be undecided; None excuses nothing.
        num_classes: Labels must be below it; None only asks that they are not negative.
    """
    raise NotImplementedError


def compare_seg_map(
    ref: SegMap,
    out: SegMap,
    tol: Tolerance | None = None,
    evidence: SegEvidence | None = None,
    *,
    num_classes: int | None = None,
) -> Comparison:
    """Compare label maps pixel by pixel; a pixel may differ only where PyTorch is undecided."""
    raise NotImplementedError


def compare_tensors(ref: RawTensors, out: RawTensors, tol: Tolerance | None = None) -> Comparison:
    """Compare raw outputs number by number, within a part of each reference tensor's range."""
    raise NotImplementedError
