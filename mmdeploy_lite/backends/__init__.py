"""What runs the exported file."""

from .onnxruntime import ONNXRuntimeBackend

__all__ = ['ONNXRuntimeBackend']
