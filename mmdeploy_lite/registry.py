"""The five registries through which everything is found and replaced.

They follow mmengine's conventions: register with ``@REWRITERS.register_module()``, build from ``dict(type='Name',
**kwargs)``. A user's own module reaches them through ``custom_imports`` of the model config.
"""

from __future__ import annotations

from mmengine.registry import Registry

REWRITERS = Registry('rewriter', scope='mmdeploy_lite', locations=['mmdeploy_lite.rewriters'])
"""Replacements of functions that cannot be traced: :class:`mmdeploy_lite.rewriting.FunctionRewriter`."""

EXPORTERS = Registry('exporter', scope='mmdeploy_lite', locations=['mmdeploy_lite.export'])
"""How a wrapped model becomes an ONNX graph."""

PRECISIONS = Registry('precision', scope='mmdeploy_lite', locations=['mmdeploy_lite.precision'])
"""How a finished file is made smaller and less exact: :class:`mmdeploy_lite.precision.Scheme`."""

BACKENDS = Registry('backend', scope='mmdeploy_lite', locations=['mmdeploy_lite.backends'])
"""What runs the exported file."""

TASKS = Registry('task', scope='mmdeploy_lite', locations=['mmdeploy_lite.tasks'])
"""What a kind of model takes and answers: inputs, outputs, wrapper, reference and comparison."""
