"""From a wrapped model to an audited ONNX graph."""

from .exporter import ExportedGraph, Exporter, TracedWarning
from .torch_export import TorchExportExporter
from .torchscript import TorchScriptExporter
from .tracing import ExportState, current_export, exporting

__all__ = [
    'ExportState',
    'ExportedGraph',
    'Exporter',
    'TorchExportExporter',
    'TorchScriptExporter',
    'TracedWarning',
    'current_export',
    'exporting',
]
