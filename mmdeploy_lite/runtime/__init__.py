"""What runs an exported file where there is no PyTorch: NumPy, ONNX Runtime and OpenCV.

>>> from mmdeploy_lite.runtime import Model
>>> Model('model.onnx')('street.jpg')
"""

from .model import Model
from .pipeline import Pipeline, check_steps
from .preprocess import Preprocess
from .results import Detections, PanopticMap, SegMap
from .seal import seal
from .session import FileSession, read_metadata

__all__ = [
    'Detections',
    'FileSession',
    'Model',
    'PanopticMap',
    'Pipeline',
    'Preprocess',
    'SegMap',
    'check_steps',
    'read_metadata',
    'seal',
]
