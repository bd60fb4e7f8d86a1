"""Exporting for any image size where the model allows it, else for one."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import onnx

from ..check.images import other_sizes
from ..check.second_way import second_way
from ..check.verify import Verification, verify
from ..deploy_config import DeployConfig
from ..errors import AuditError, BackendError, ConfigError, ExportError, UnsupportedError
from ..loading import LoadedModel
from ..progress import Stages
from ..registry import BACKENDS, EXPORTERS, REWRITERS
from ..rewriting import build_rewriters
from ..tasks import BaseTask, Sample, TestPipeline, fix_shape
from ..workdir import save_model
from .allowed import allowed_lines
from .build import BuiltGraph, build_graph
from .describe import describe
from .explain import explain_pytorch
from .metadata import write_metadata


@dataclass
class Attempt:
    """One export, compared.

    Attributes:
        graph: that was written.
        verification: how it compares.
        samples: the images it was compared on, in the order of the comparisons.
        reason: why height and width are fixed; None where they are dynamic.
        given_up: why the graph with convolutions by Winograd's algorithm is not the one that was written; None where
            it is, or where there is none.
    """

    graph: BuiltGraph
    verification: Verification
    samples: list[Sample]
    reason: str | None
    given_up: str | None = None


@dataclass
class Exporting:
    """What all attempts have in common.

    Attributes:
        task: that is exported.
        loaded: its model.
        settings: of the deployment.
        steps: the test pipeline as the config has it.
        path: that the graph is written to.
        stages: times and shows.
    """

    task: BaseTask
    loaded: LoadedModel
    settings: DeployConfig
    steps: Sequence[Mapping[str, Any]]
    path: Path
    stages: Stages

    def run(self, samples: list[Sample], reason: str | None = None) -> Attempt:
        """Export with dynamic height and width, or fixed ones where there is a reason or it turns out to be needed.

        Args:
            samples: the images; the first is traced.
            reason: why the size has to be fixed; None where it may be dynamic.

        Raises:
            DeployError: see :func:`build_graph`.
            UnsupportedError: the model fails in PyTorch, too.
        """
        if reason is None:
            attempt, reason = self._try_dynamic(samples)
            if attempt is not None:
                return attempt
        try:
            return self._attempt(self._of_one_size(samples), reason)
        except ExportError:
            self._check_pytorch(samples[0])
            raise

    def _try_dynamic(self, samples: list[Sample]) -> tuple[Attempt | None, str | None]:
        """A file of any height and width, or None and the reason why the size has to be fixed."""
        others = self._at_other_sizes(samples[0])
        if not others:
            return None, 'the model itself runs at no other size'
        try:
            attempt = self._attempt([*samples, *others], None)
        except (AuditError, ExportError, BackendError, UnsupportedError) as error:
            lines = str(error).splitlines()  # an audit's first line is a heading
            return None, lines[min(len(lines) - 1, isinstance(error, AuditError))].strip(' -')
        pairs = zip(attempt.verification.checks, attempt.samples, strict=True)
        bad = [sample for check, sample in pairs if not check.comparison.equal]
        if not bad or any(sample.shape == samples[0].shape for sample in bad):
            return attempt, None  # equal, or unequal at the traced size too: not a matter of size
        return None, f'with a dynamic size, {attempt.verification.first_difference}'

    def _attempt(self, samples: list[Sample], reason: str | None) -> Attempt:
        """Export, write, load and compare once."""
        task, dynamic = self.task, reason is None
        backend = build_from(BACKENDS, self.settings.backend)  # first: what is wrong with it is known before the export
        same_size = [sample for sample in samples if task.fit_together(samples[0], sample)]
        same_size *= -(-task.batch_size // len(same_size))  # a batch larger than that repeats them
        with self.stages.stage('export', note='height and width dynamic' if dynamic else 'height and width fixed'):
            graph = build_graph(
                task,
                [*same_size[: task.batch_size], *same_size[-task.batch_size :]],
                build_from(EXPORTERS, self.settings.exporter),
                build_rewriters(self.settings.rewriters, REWRITERS),
                self.settings.required,
                dynamic,
                allowed_lines(self.settings.audit.get('allow', ())),
                self.settings.optimize,
                getattr(backend, 'winograd', False) if self.settings.winograd is None else self.settings.winograd,
            )
            carries = self.settings.input.get('runtime_pipeline', True)
            metadata = describe(task, self.loaded, samples[0], reason, carries)
            self._write(graph.model, {**metadata, 'winograd': graph.plain is not None})
        found = self._check(graph.model, backend, samples, dynamic)
        given_up = None
        if graph.plain is not None and not found.equal:  # it rounds more, which a deep network may not bear
            graph.model, graph.plain = graph.plain(), None
            self._write(graph.model, {**metadata, 'winograd': False})
            given_up, found = found.first_difference, self._check(graph.model, backend, samples, dynamic)
        if self.settings.precision is None:
            graph.plain = None
        return Attempt(graph, found, samples, reason, given_up)

    def _write(self, model: onnx.ModelProto, metadata: dict[str, Any]) -> None:
        write_metadata(model, metadata)
        save_model(model, self.path, self.settings.external_data)

    def _check(self, model: onnx.ModelProto, backend: Any, samples: list[Sample], dynamic: bool) -> Verification:
        """Load what was written, and compare."""
        session = backend.load(self.path)
        with self.stages.stage('check', total=len(samples)) as step:
            second = second_way(model, backend)
            return verify(self.task, session, samples, self.task.tolerance, dynamic, step, second)

    def _check_pytorch(self, sample: Sample) -> None:
        """Where the model fails without being traced, that is what to say; a rewriter would not help.

        Raises:
            UnsupportedError: PyTorch does not run the model on the image.
        """
        try:
            self.task.test_step(sample)
        except Exception as error:  # whatever it is
            height, width = sample.shape
            raise UnsupportedError(
                f'the model itself, in PyTorch, fails on {sample.name} at {height} x {width}. Try another size'
                f' (--shape H W; many models need multiples of 32) or image, or mend the config:'
                f' {explain_pytorch(error)}'
            ) from error

    def _of_one_size(self, samples: Sequence[Sample]) -> list[Sample]:
        """For a file of fixed size: images that come out differently are resized to the first one's original size."""
        height, width = samples[0].image.shape[:2]
        return [
            sample
            if sample.shape == samples[0].shape
            else self.task.prepare(f'{sample.name} (as {width}x{height})', cv2.resize(sample.image, (width, height)))
            for sample in samples
        ]

    def _at_other_sizes(self, sample: Sample) -> list[Sample]:
        """The first image at other sizes of ``image``, those that PyTorch itself can run."""
        samples = []
        symbolic = getattr(build_from(EXPORTERS, self.settings.exporter), 'symbolic', False)
        for shape in other_sizes(sample.shape, self.task.least_size, larger=symbolic):
            resized = copy.copy(self.task)
            resized.pipeline = TestPipeline(fix_shape(self.steps, shape))
            candidate = resized.prepare(f'{sample.name} (at {shape[1]}x{shape[0]})', sample.image)
            try:
                self.task.test_step(candidate)
            except Exception:  # whatever it is; where the model runs at no size, tracing it says why
                continue
            samples.append(candidate)
        return samples


def build_from(registry: Any, config: Mapping[str, Any]) -> Any:
    """Build ``dict(type='Name', **kwargs)``.

    Raises:
        ConfigError: an unknown type, or arguments it does not take.
    """
    for location in registry._locations:
        importlib.import_module(location)
    config = dict(config)
    kind = config.pop('type', None)
    cls = registry.get(kind) if isinstance(kind, str) else None
    if cls is None:
        known = ', '.join(sorted(registry.module_dict))
        raise ConfigError(
            f"'{kind}' is not in the {registry.name} registry; known are {known}. Add your own with custom_imports"
        )
    try:
        return cls(**config)
    except TypeError as error:
        raise ConfigError(f'{kind} cannot take {config}: {error}') from error
