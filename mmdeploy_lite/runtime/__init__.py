"""What runs an exported file where there is no PyTorch: NumPy and ONNX Runtime."""

from .session import FileSession, read_metadata

__all__ = ['FileSession', 'read_metadata']
