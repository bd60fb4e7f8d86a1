"""From the exact file to a less exact one, measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from mmengine.config import Config

from ..errors import AuditError, BackendError, DeployError, ExportError, UnsupportedError
from ..evaluation import evaluate, for_file
from ..export.attempt import Attempt, build_from
from ..export.audit import foreign_operators, invalid_model
from ..export.describe import file_facts
from ..export.large import is_large
from ..export.metadata import write_metadata
from ..progress import Stages
from ..registry import PRECISIONS
from ..runtime.session import read_metadata
from ..workdir import save_model
from .agreement import agreement
from .report import PrecisionReport
from .scheme import Scheme


def build_scheme(config: Mapping[str, Any] | None) -> Scheme | None:
    """The scheme of ``precision`` in the deploy config; None where it asks for none.

    Raises:
        ConfigError: an unknown type, or arguments it does not take.
    """
    return None if config is None else build_from(PRECISIONS, config)


def lower(
    scheme: Scheme,
    exact: Path,
    target: Path,
    task: Any,
    attempt: Attempt,
    count: int,
    cfg: Config,
    backend: Any,
    external_data: bool = False,
    stages: Stages | None = None,
) -> PrecisionReport:
    """Make the less exact file and measure what it costs.

    Args:
        scheme: how.
        exact: the file that is equal to PyTorch.
        target: the name to write.
        task: that it was exported for.
        attempt: its export: the images it was compared on, and PyTorch's answers.
        count: of the images that the user gave, which come first.
        cfg: the model config, whose test dataset is measured on where it is there.
        backend: that runs both.
        external_data: write the weights into a file of their own.
        stages: shows and times the work.

    Raises:
        DeployError: it cannot be made, or not be run.
    """
    stages = stages or Stages()
    session = backend.load(exact)

    def takes(sample: Any) -> bool:
        try:
            session.check(task.feeds([sample] * task.batch_size))
        except BackendError:
            return False
        return True

    model = onnx.load(str(exact))
    metadata = read_metadata({entry.key: entry.value for entry in model.metadata_props})
    if attempt.graph.plain is not None:  # sums of rows and of taps have other ranges, and lose more
        model, metadata['winograd'] = attempt.graph.plain(), False
    if is_large(model):
        raise UnsupportedError(f'{scheme.name} cannot be made of a model with more than 2 GB of weights')
    try:
        model, details = scheme.convert(model, task, takes, lambda total: stages.stage(scheme.name, total=total))
    except DeployError:
        raise
    except Exception as error:  # of the libraries that convert, whose errors have no common base
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise ExportError(f'the network cannot be converted to {scheme.name}: {line}') from error
    if problems := foreign_operators(model) + invalid_model(model):
        raise AuditError('\n'.join([f'the {scheme.name} graph is not valid:', *(f'  - {line}' for line in problems)]))
    metadata = {key: value for key, value in metadata.items() if key != 'version'}
    write_metadata(model, {**metadata, 'precision': dict(type=scheme.name, **details)})
    save_model(model, target, external_data)
    lowered = backend.load(target)
    report = PrecisionReport(
        scheme.name,
        file_facts(model, target),
        file_facts(onnx.load(str(exact)), exact).bytes,
        scheme.max_loss,
        scheme.min_agreement,
        details,
    )
    with stages.stage('agreement', total=count) as step:
        for sample, (reference, _) in zip(attempt.samples[:count], attempt.verification.answers, strict=False):
            answer = task.answer(lowered.run(task.feeds([sample] * task.batch_size)))
            report.agreement.append(agreement(sample.name, reference, answer))
            step()
    if not scheme.metrics:
        report.not_measured = 'deploy.precision.metrics=False'
        return report
    try:
        found = [
            evaluate(cfg, for_file(task, file), file, False, stages, name)
            for name, file in (('float32', session), (scheme.name, lowered))
        ]
    except (DeployError, OSError) as error:
        report.not_measured = str(error).splitlines()[0]
        return report
    report.images = found[0].images
    report.before, report.after = (item.file for item in found)
    return report
