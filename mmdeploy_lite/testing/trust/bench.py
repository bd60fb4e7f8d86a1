"""One fixture with all that ``deploy`` checks a file by, so that many broken files can be checked quickly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from ...check.images import variants
from ...check.report import Check
from ...check.runtime_check import check_runtime
from ...check.second_way import second_way
from ...check.verify import verify
from ...errors import DeployError
from ...export.attempt import Attempt, Exporting, build_from
from ...loading import check_image
from ...prepare import merge_settings, prepare
from ...progress import Stages
from ...registry import BACKENDS
from ...runtime.seal import SEAL_KEY
from ...workdir import save_model
from ..exporting import remember_references
from .fixtures import Fixture


@dataclass
class Verdict:
    """What ``deploy``'s own check says of one file.

    Attributes:
        word: 'equal', 'unequal' or 'undecidable'; 'refused' where it did not come to a comparison.
        why: the first reason.
    """

    word: str
    why: str = ''

    @property
    def caught(self) -> bool:
        """``deploy`` would not have called the file ``model.onnx``."""
        return self.word != 'equal'


def without_seal(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model that is to be edited and written again: in place, without the digest of what it was."""
    kept = [entry for entry in model.metadata_props if entry.key != SEAL_KEY]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    return model


class Bench:
    """A model, deployed once, and the images that it was checked on.

    The steps are those of :func:`mmdeploy_lite.apis.deploy`; PyTorch answers each image once for all files.

    Args:
        fixture: what is deployed.
        folder: for the files.

    Raises:
        DeployError: the model cannot be deployed.
    """

    def __init__(self, fixture: Fixture, folder: Path) -> None:
        self.fixture = fixture
        self.path = folder / 'good.onnx'
        self.prepared = prepare(
            fixture.config, fixture.checkpoint, work_dir=folder, cfg_options=dict(fixture.cfg_options)
        )
        self.task = self.prepared.task
        remember_references(self.task)
        named = [(path.name, check_image(path)) for path in fixture.images]
        samples = [self.task.prepare(*item) for item in [*named, *variants(*named[0])]]
        reason = 'exported with --shape' if self.prepared.shape else None
        self.attempt: Attempt = self._exporting(self.path, self.prepared.settings).run(samples, reason)
        self.good = self._verdict(self.attempt, self.path)
        self.not_exercised = self.attempt.verification.not_exercised
        self.good_graph = self.attempt.graph.model.SerializeToString(deterministic=True)
        self.model = without_seal(onnx.load(str(self.path)))

    def check(self, model: onnx.ModelProto) -> Verdict:
        """Check a file as ``deploy`` checks the one that it has written."""
        path = self.path.with_name('broken.onnx')
        save_model(model, path)
        try:
            backend = build_from(BACKENDS, self.prepared.settings.backend)
            session, second = backend.load(path), second_way(model, backend)
            samples, dynamic = self.attempt.samples, self.attempt.reason is None
            found = verify(self.task, session, samples, self.task.tolerance, dynamic, second=second)
            return self._verdict(replace(self.attempt, verification=found), path)
        except DeployError as error:
            return Verdict('refused', f'{type(error).__name__}: {str(error).splitlines()[-1]}')

    def rebuild(self, rewriters: Mapping[str, Any]) -> tuple[Verdict, bytes | None]:
        """Export with other rewriters, and check.

        Args:
            rewriters: over those of the deploy config, by key.

        Returns:
            The verdict, and the graph as bytes where there is one.
        """
        options = {'rewriters': dict(rewriters)}
        for key, value in self.fixture.cfg_options.items():
            _, first, second = key.split('.')
            options.setdefault(first, {})[second] = value
        settings = merge_settings(type(self.task), None, self.prepared.loaded.cfg, options)
        path = self.path.with_name('rebuilt.onnx')
        try:
            attempt = self._exporting(path, settings)._attempt(self.attempt.samples, self.attempt.reason)
            return self._verdict(attempt, path), attempt.graph.model.SerializeToString(deterministic=True)
        except DeployError as error:
            return Verdict('refused', f'{type(error).__name__}: {str(error).splitlines()[-1]}'), None

    def _exporting(self, path: Path, settings: Any) -> Exporting:
        return Exporting(self.task, self.prepared.loaded, settings, self.prepared.steps, path, Stages())

    def _verdict(self, attempt: Attempt, path: Path) -> Verdict:
        checks: list[Check] = list(attempt.verification.checks)
        if self.task.runtime_reads:
            images = self.fixture.images
            checks += check_runtime(path, self.task, attempt.samples[: len(images)], images)[0]
        verdicts = {check.comparison.verdict: check for check in reversed(checks)}
        for word in ('unequal', 'undecidable'):
            if word in verdicts:
                check = verdicts[word]
                return Verdict(word, f'{check.image}: {(check.comparison.reasons or [""])[0]}')
        return Verdict('equal')
