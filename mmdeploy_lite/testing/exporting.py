"""Export and compare in one call, without the stages, reports and files of a deployment."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ..backends.onnxruntime import ONNXRuntimeBackend
from ..check.second_way import second_way
from ..check.tolerance import Tolerance
from ..check.verify import Verification, verify
from ..deploy_config import DeployConfig, deploy_section, resolve_deploy_config
from ..export.allowed import allowed_lines
from ..export.build import BuiltGraph, build_graph
from ..export.metadata import write_metadata
from ..loading import read_config, use_scope
from ..registry import EXPORTERS, REWRITERS
from ..rewriting import build_rewriters
from ..tasks import BaseTask, Sample


@dataclass
class Exported:
    """A file and how to run it.

    Attributes:
        task: that was exported.
        graph: audited and optimized.
        session: of ONNX Runtime.
        settings: of the deployment.
        dynamic: height and width are not fixed.
    """

    task: BaseTask
    graph: BuiltGraph
    session: Any
    settings: DeployConfig
    dynamic: bool

    def verify(self, samples: Sequence[Sample]) -> Verification:
        """Compare with PyTorch."""
        tolerance = Tolerance.from_config(self.settings.tolerance)
        second = second_way(self.graph.model, ONNXRuntimeBackend())
        return verify(self.task, self.session, samples, tolerance, self.dynamic, second=second)

    def answers(self, *samples: Sample) -> list[Any]:
        """Run one batch; the answer of each of its images."""
        outputs: dict[str, np.ndarray] = self.session.run(self.task.feeds(list(samples)))
        return [self.task.answer(outputs, index) for index in range(len(samples))]


def settings_of(task: BaseTask, deploy: Mapping[str, Any] | None = None) -> DeployConfig:
    """The task's default deploy config with ``deploy`` over it."""
    name = f'mmdeploy_lite::{task.default_deploy_cfg}'
    return resolve_deploy_config(deploy_section(read_config(name), name), deploy)


def export(
    task: BaseTask,
    traced: Sequence[Sample],
    folder: Path,
    *,
    dynamic: bool = True,
    deploy: Mapping[str, Any] | None = None,
) -> Exported:
    """Trace, audit, optimize and load.

    Args:
        task: to export.
        traced: images of one size: the first ones are traced, the last is the audit's other image.
        folder: where the file goes.
        dynamic: keep height and width out of the graph.
        deploy: over the task's default deploy config.

    Raises:
        DeployError: the model cannot be exported.
    """
    settings = settings_of(task, deploy)
    use_scope(task.codebase)
    importlib.import_module('mmdeploy_lite.export')
    exporter = dict(settings.exporter)
    graph = build_graph(
        task,
        list(traced),
        EXPORTERS.get(exporter.pop('type'))(**exporter),
        build_rewriters(settings.rewriters, REWRITERS),
        settings.required,
        dynamic,
        allowed_lines(settings.audit.get('allow', ())),
        settings.optimize,
        settings.winograd is not False,
    )
    write_metadata(graph.model, dict(task=task.name))
    path = Path(folder, f'{task.name}.onnx')
    onnx.save(graph.model, str(path))
    return Exported(task, graph, ONNXRuntimeBackend(threads=1).load(path), settings, dynamic)


def remember_references(task: BaseTask) -> None:
    """Let PyTorch answer each sample once from now on; for a model whose weights change no more."""
    known: dict[int, tuple[Sample, Any]] = {}
    compute = task.reference

    def reference(sample: Sample) -> Any:
        if id(sample) not in known:
            answer, evidence = compute(sample)
            for name in ('unstable', 'mask_rounded'):
                if callable(more := getattr(evidence, name, None)):
                    setattr(evidence, name, functools.cache(more))
            known[id(sample)] = sample, (answer, evidence)
        return known[id(sample)][1]

    task.reference = reference
