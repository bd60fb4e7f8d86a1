"""From a wrapped model to an audited ONNX graph."""

from .torch_export import TorchExportExporter
from .torchscript import ExportedGraph, TorchScriptExporter, TracedWarning
from .tracing import ExportState, current_export, exporting

__all__ = [
    'ExportState',
    'ExportedGraph',
    'TorchExportExporter',
    'TorchScriptExporter',
    'TracedWarning',
    'current_export',
    'exporting',
]
