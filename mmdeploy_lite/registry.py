"""The four registries through which everything is found and replaced.

They follow mmengine's conventions: register with ``@REWRITERS.register_module()``, build from ``dict(type='Name',
**kwargs)``. A user's own module reaches them through ``custom_imports`` of the model config.
"""

from __future__ import annotations

from mmengine.registry import Registry

REWRITERS = Registry('rewriter', scope='mmdeploy_lite', locations=['mmdeploy_lite.rewriters'])
"""Replacements of functions that cannot be traced: :class:`mmdeploy_lite.rewriting.FunctionRewriter`."""

EXPORTERS = Registry('exporter', scope='mmdeploy_lite', locations=['mmdeploy_lite.export'])
"""How a wrapped model becomes an ONNX graph."""

BACKENDS = Registry('backend', scope='mmdeploy_lite', locations=['mmdeploy_lite.backends'])
"""What runs the exported file."""

TASKS = Registry('task', scope='mmdeploy_lite', locations=['mmdeploy_lite.tasks'])
"""What a kind of model takes and answers: inputs, outputs, wrapper, reference and comparison."""
