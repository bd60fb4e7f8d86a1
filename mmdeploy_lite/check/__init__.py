"""Does the exported file answer what PyTorch answers? One tolerance table, one rule for ties, one report.

``answers``, ``tolerance``, ``compare``, ``nms_ties`` and ``coverage`` need NumPy alone; ``report`` draws its table with
rich; ``visualize`` loads the model libraries when a picture is drawn. None of the three is imported here.
"""

from mmdeploy_lite.check.answers import (
    DetectionEvidence,
    Detections,
    NmsCall,
    RawTensors,
    SegEvidence,
    SegMap,
)
from mmdeploy_lite.check.compare import Comparison, compare_detections, compare_seg_map, compare_tensors
from mmdeploy_lite.check.tolerance import Tolerance

__all__ = [
    'Comparison',
    'DetectionEvidence',
    'Detections',
    'NmsCall',
    'RawTensors',
    'SegEvidence',
    'SegMap',
    'Tolerance',
    'compare_detections',
    'compare_seg_map',
    'compare_tensors',
]
