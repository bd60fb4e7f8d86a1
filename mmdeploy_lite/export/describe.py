"""A file in words: its metadata, and the facts that the report names."""

from __future__ import annotations

import hashlib
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from .. import __version__
from ..check.report import FileFacts
from ..deploy_config import plain_dict
from ..loading import LoadedModel
from ..tasks import BaseTask, Sample
from .graphs import all_nodes
from .large import data_files
from .metadata import plain


def describe(
    task: BaseTask, loaded: LoadedModel, sample: Sample, reason: str | None, runtime_pipeline: bool = True
) -> dict[str, Any]:
    """The file's metadata: what a runtime needs to know, and what it was made from.

    Args:
        task: that was exported.
        loaded: its model.
        sample: the image that was traced.
        reason: why height and width are fixed; None where they are not.
        runtime_pipeline: the file says how the runtime prepares an image.
    """
    meta = loaded.dataset_meta or {}
    height, width = sample.shape
    shapes: dict[str, Any] = {'dynamic': reason is None}
    if reason is None and task.least_size != (1, 1):
        shapes['least'] = list(task.least_size)
    if reason is not None:
        shapes.update(height=height, width=width, reason=f'the size is fixed: {reason}')
    return {
        'sealed': True,
        'task': task.name,
        'codebase': task.codebase,
        'classes': list(meta.get('classes') or []),
        'palette': plain(meta.get('palette') or []),
        'pipeline': plain(task.pipeline.steps) if runtime_pipeline else None,
        'answers': task.outputs,
        'input': 'pipeline' if task.preprocess == 'graph' else 'preprocessed',
        'threshold': task.threshold,
        'preprocess': plain(task.preprocess_spec.to_dict()),
        'inputs': task.input_names,
        'outputs': {name: list(dims) for name, dims in task.file_shapes().items()},
        'rescale': task.rescale,
        'dtype': task.dtype,
        'shapes': shapes,
        'test_cfg': plain(plain_dict(dict(getattr(task.model, 'test_cfg', None) or {}))),
        'versions': versions(),
        'config_sha256': _digest(loaded.cfg.to_dict()),
        'checkpoint_sha256': loaded.checkpoint_sha256,
    }


def _digest(cfg: dict[str, Any]) -> str:
    """Of what a config says, however it is written: ``cfg.pretty_text`` takes a second."""
    return hashlib.sha256(json.dumps(plain(cfg), sort_keys=True).encode()).hexdigest()


def versions() -> dict[str, str]:
    """Of the libraries that had a part in it and are installed."""
    found = {'mmdeploy_lite': __version__}
    for name in ('torch', 'onnx', 'onnxruntime', 'mmengine', 'mmcv', 'mmdet', 'mmseg', 'numpy'):
        try:
            found[name] = importlib.import_module(name).__version__
        except ImportError:
            continue
    return found


def file_facts(model: onnx.ModelProto, path: Path) -> FileFacts:
    """Inputs, outputs, size and number of nodes of a file.

    Args:
        model: its graph.
        path: where it is.
    """

    def values(entries: Any) -> list[dict[str, Any]]:
        return [
            {
                'name': entry.name,
                'dtype': np.dtype(onnx.helper.tensor_dtype_to_np_dtype(entry.type.tensor_type.elem_type)).name,
                'shape': [dim.dim_param or dim.dim_value for dim in entry.type.tensor_type.shape.dim],
            }
            for entry in entries
        ]

    beside = data_files(path)
    opset = next(entry.version for entry in model.opset_import if entry.domain in ('', 'ai.onnx'))
    return FileFacts(
        path=str(path),
        bytes=sum(file.stat().st_size for file in [path, *beside]),
        data=[file.name for file in beside],
        inputs=values(model.graph.input),
        outputs=values(model.graph.output),
        opset=opset,
        nodes=sum(1 for _ in all_nodes(model.graph)),
    )
