"""What the compared images did not exercise: where equality was not put to the test."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmdeploy_lite.check.answers import DetectionEvidence, Detections, RawTensors, SegEvidence, SegMap

_NAMED = 5
"""So many names of unseen classes are spelled out."""


def exercised(
    answers: Sequence[Detections | SegMap | RawTensors],
    evidences: Sequence[DetectionEvidence | SegEvidence | None] = (),
    *,
    num_classes: int | None = None,
    class_names: Sequence[str] | None = None,
    sizes: Sequence[tuple[int, int]] = (),
    dynamic: bool = False,
) -> list[str]:
    """List what all images together did not exercise.

    Args:
        answers: PyTorch's answer for each image.
        evidences: The evidence of the same images, in the same order; may be left out.
        num_classes: Number of classes of the model; None is taken from ``class_names``.
        class_names: Their names, for the message.
        sizes: (h, w) of each ``image`` that the file ran on, in pixels.
        dynamic: The file takes other heights and widths.

    Returns:
        One line per thing that was not exercised; empty when nothing is missing.
    """
    if not answers:
        return ['no image was compared']
    missing: list[str] = []
    count = num_classes if num_classes is not None or class_names is None else len(class_names)
    detections = [answer for answer in answers if isinstance(answer, Detections)]
    maps = [answer for answer in answers if isinstance(answer, SegMap)]
    seen = {int(label) for answer in detections for label in np.unique(answer.labels)}
    seen |= {int(label) for answer in maps for label in np.unique(answer.classes)}
    if count is not None and (detections or maps):
        missing += _unseen_classes(seen, count, class_names)
    if detections:
        pairs = [
            (answer, evidence)
            for answer, evidence in zip(answers, [*evidences, *[None] * len(answers)], strict=False)
            if isinstance(answer, Detections) and isinstance(evidence, DetectionEvidence)
        ]
        missing += _detection_rules(detections, pairs)
    if maps and all(answer.seg_map.size == 0 or np.ptp(answer.seg_map) == 0 for answer in maps):
        missing.append('no label map holds more than one class')
    if dynamic and len(set(sizes)) == 1:
        height, width = sizes[0]
        missing.append(f'height and width are dynamic, but every image is {width}x{height}')
    return missing


def _unseen_classes(seen: set[int], count: int, names: Sequence[str] | None) -> list[str]:
    unseen = [label for label in range(count) if label not in seen]
    if not unseen:
        return []
    text = f'{len(unseen)} of {count} classes never appear'
    if names is not None and len(names) == count:
        text += f': {", ".join(str(names[label]) for label in unseen[:_NAMED])}'
        text += ', ...' if len(unseen) > _NAMED else ''
    return [text]


def _detection_rules(
    detections: Sequence[Detections], pairs: Sequence[tuple[Detections, DetectionEvidence]]
) -> list[str]:
    """Which yes-no decisions of the post-processing went only one way."""
    missing = []
    if all(len(answer) for answer in detections):
        missing.append('no image without detections')
    if not any(len(answer) for answer in detections):
        missing.append('no image with detections')
    with_masks = [answer.masks for answer in detections if answer.masks is not None]
    if with_masks and not any(masks.any() for masks in with_masks):
        missing.append('no mask holds a pixel')
    if any(evidence.nms_calls for _, evidence in pairs) and not any(_suppressed(*pair) for pair in pairs):
        missing.append('NMS suppressed nothing')
    caps = [evidence.max_per_img for _, evidence in pairs if evidence.max_per_img is not None]
    if caps and not any(len(answer) == evidence.max_per_img for answer, evidence in pairs):
        most = max(len(answer) for answer, _ in pairs)
        missing.append(f'the cap of {max(caps)} detections was never reached (most: {most})')
    return missing + _thresholds([evidence for _, evidence in pairs])


def _thresholds(evidences: Sequence[DetectionEvidence]) -> list[str]:
    cuts: set[float] = set()
    rejected, known = 0, False
    for evidence in evidences:
        cuts.update(evidence.score_thrs)
        if evidence.rejected is not None:
            rejected, known = rejected + evidence.rejected, True
        for call in evidence.nms_calls[-1:]:
            cuts.update(call.score_cuts)
            for cut in {*call.score_cuts, *evidence.score_thrs}:
                rejected += int((call.scores <= cut).sum())
    if not cuts or rejected:
        return []
    shown = ', '.join(f'{cut:g}' for cut in sorted(cuts))
    if known:
        return [f'the score threshold {shown} rejected nothing']
    return [f'whether the score threshold {shown} rejected anything was not recorded']


def _suppressed(answer: Detections, evidence: DetectionEvidence) -> bool:
    """The last NMS removed a candidate: one that is missing and that neither the cap nor a threshold explains."""
    if not evidence.nms_calls:
        return False
    call = evidence.nms_calls[-1]
    passed = call.scores[call.scores > max((*call.score_cuts, *evidence.score_thrs), default=-np.inf)]
    full = evidence.max_per_img is not None and len(answer) >= evidence.max_per_img
    if not full or not len(answer):
        return len(passed) > len(answer)
    return int((passed > answer.scores.min()).sum()) >= len(answer)
