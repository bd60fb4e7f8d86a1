"""What runs the exported file."""

from .onnxruntime import ONNXRuntimeBackend
from .openvino import OpenVINOBackend

__all__ = ['ONNXRuntimeBackend', 'OpenVINOBackend']
