"""Run PyTorch and the file on the same images and compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import BackendError
from .answers import DetectionEvidence
from .comparison import Comparison
from .coverage import exercised
from .coverage_inputs import unprepared
from .coverage_nms import between_boxes, of_levels
from .report import Check
from .second_way import SecondWay
from .tolerance import Tolerance


@dataclass
class Verification:
    """What the comparison found.

    Attributes:
        checks: one per image.
        answers: (PyTorch's, the file's or None) per image.
        not_exercised: what the images did not put to the test.
    """

    checks: list[Check] = field(default_factory=list)
    answers: list[tuple[Any, Any]] = field(default_factory=list)
    not_exercised: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Every image."""
        return bool(self.checks) and all(check.comparison.equal for check in self.checks)

    @property
    def first_difference(self) -> str:
        """Of the images that are not equal, the first in words: which, its verdict and why."""
        check = next(check for check in self.checks if not check.comparison.equal)
        why = (check.comparison.reasons or ['no reason given'])[0]
        return f'{check.image} is {check.comparison.verdict}: {why}'


def verify(
    task: Any,
    session: Any,
    samples: Sequence[Any],
    tolerance: Tolerance,
    dynamic: bool,
    step: Callable[[], None] = lambda: None,
    second: SecondWay | None = None,
) -> Verification:
    """Compare the file with PyTorch on every image.

    Args:
        task: a :class:`mmdeploy_lite.tasks.BaseTask`.
        session: the loaded file.
        samples: the images; with a batch size above 1, each is run with its successors, so that every place in the
            batch is seen.
        tolerance: what counts as equal.
        dynamic: the file takes other sizes.
        step: called after each image, for a progress display.
        second: the other way of a file that chooses between two; it must answer the same.

    Returns:
        The comparisons.
    """
    result = Verification()
    evidences = []
    output = next(iter(task.output_shapes()))
    for index, sample in enumerate(samples):
        reference, evidence = task.reference(sample)
        answer = None
        try:
            place, batch = _batch(task, samples, index)
            feeds = task.feeds(batch)
            answer = task.answer(session.run(feeds), place)
            comparison = task.compare(sample, reference, answer, tolerance, evidence)
            if second is not None and comparison.equal:
                other = task.answer(second.run(feeds), place)
                other = task.compare(sample, reference, other, tolerance, evidence)
                if not other.equal:
                    other.reasons = [f'its longer way, which other images take: {line}' for line in other.reasons]
                    comparison = other
        except BackendError as error:
            comparison = Comparison(kind=task.kind, verdict='unequal', reasons=[str(error)])
        result.checks.append(Check(sample.name, sample.image.shape[:2], output, comparison))
        result.answers.append((reference, answer))
        evidences.append(evidence)
        step()
    result.not_exercised = exercised(
        [reference for reference, _ in result.answers],
        evidences,
        num_classes=task.num_classes,
        class_names=(getattr(task.model, 'dataset_meta', None) or {}).get('classes'),
        sizes=[sample.shape for sample in samples],
        dynamic=dynamic,
    )
    pairs = [
        (reference, evidence)
        for (reference, _), evidence in zip(result.answers, evidences, strict=True)
        if isinstance(evidence, DetectionEvidence)
    ]
    result.not_exercised += [*between_boxes(pairs), *of_levels(pairs)]
    result.not_exercised += [] if second is None else second.not_exercised()
    result.not_exercised += unprepared(task, samples, [reference for reference, _ in result.answers])
    return result


def _batch(task: Any, samples: Sequence[Any], index: int) -> tuple[int, list[Any]]:
    """A batch of images that fit together and holds image ``index``, and its place there."""
    size, sample = 1 + index % 3 if task.dynamic_batch else task.batch_size, samples[index]
    if size == 1:
        return 0, [sample]
    fitting = [other for other in samples if other is not sample and task.fit_together(sample, other)]
    others = [fitting[(index + offset) % len(fitting)] for offset in range(size - 1)] if fitting else []
    others += [sample] * (size - 1 - len(others))
    place = index % size
    return place, [*others[:place], sample, *others[place:]]
