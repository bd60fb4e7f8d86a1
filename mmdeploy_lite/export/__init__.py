"""From a wrapped model to an audited ONNX graph."""

from .torchscript import ExportedGraph, TorchScriptExporter, TracedWarning
from .tracing import ExportState, current_export, exporting

__all__ = ['ExportState', 'ExportedGraph', 'TorchScriptExporter', 'TracedWarning', 'current_export', 'exporting']
