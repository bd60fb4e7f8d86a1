"""The result of comparing one output of one image."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal['equal', 'unequal', 'undecidable']


@dataclass
class Unmatched:
    """A detection that one side has and the other does not.

    Attributes:
        side: ``'reference'`` (PyTorch) or ``'backend'``: who has it.
        index: Its row in that side's answer.
        label: Class index.
        score: Its score.
        box: x1 y1 x2 y2 in the answer's pixels.
        reason: Why it has no partner or, once excused, what shows that PyTorch is undecided about it.
    """

    side: Literal['reference', 'backend']
    index: int
    label: int
    score: float
    box: tuple[float, float, float, float]
    reason: str = ''

    def to_dict(self) -> dict[str, Any]:
        """Plain json types."""
        return dict(
            side=self.side,
            index=self.index,
            label=self.label,
            score=self.score,
            box=list(self.box),
            reason=self.reason,
        )


@dataclass
class Comparison:
    """How one output of one image compares.

    Attributes:
        kind: ``'detections'``, ``'seg_map'`` or ``'tensors'``.
        verdict: ``'equal'``, ``'unequal'`` or ``'undecidable'`` (nothing is wrong for sure, but too much had to be
            excused).
        ref_count: Detections, pixels or numbers of the reference.
        out_count: The same of the backend.
        matched: Detections with a partner; pixels or numbers that agree.
        worst_score_diff: Largest score difference of matched detections.
        worst_box_diff: Largest coordinate difference of matched detections in pixels.
        worst_tensor_diff: Largest difference in parts of the tensor's range (``kind='tensors'``).
        clear_pixels: Mask or map pixels that differ although PyTorch is sure of them.
        excused_pixels: Mask or map pixels that differ where PyTorch is undecided.
        worst_mask_share: For masks, the largest share of clear differing pixels in the union of a matched pair.
        has_masks: Masks were compared.
        unmatched_ref: Reference detections without partner and without excuse.
        unmatched_out: The same of the backend.
        excused: Detections without partner that PyTorch itself is undecided about.
        reasons: What is unequal, one line each; empty when equal.
        worst_tensor: Name of the output with ``worst_tensor_diff``.
    """

    kind: Literal['detections', 'seg_map', 'tensors']
    verdict: Verdict = 'equal'
    ref_count: int = 0
    out_count: int = 0
    matched: int = 0
    worst_score_diff: float = 0.0
    worst_box_diff: float = 0.0
    worst_tensor_diff: float = 0.0
    worst_tensor: str = ''
    clear_pixels: int = 0
    excused_pixels: int = 0
    worst_mask_share: float = 0.0
    has_masks: bool = False
    unmatched_ref: list[Unmatched] = field(default_factory=list)
    unmatched_out: list[Unmatched] = field(default_factory=list)
    excused: list[Unmatched] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """The verdict is ``'equal'``."""
        return self.verdict == 'equal'

    def to_dict(self) -> dict[str, Any]:
        """Plain json types, always the same keys in the same order."""
        return dict(
            kind=self.kind,
            verdict=self.verdict,
            counts=dict(reference=self.ref_count, backend=self.out_count, matched=self.matched),
            worst_score_diff=self.worst_score_diff,
            worst_box_diff=self.worst_box_diff,
            worst_tensor_diff=self.worst_tensor_diff,
            worst_tensor=self.worst_tensor,
            has_masks=self.has_masks,
            clear_pixels=self.clear_pixels,
            excused_pixels=self.excused_pixels,
            worst_mask_share=self.worst_mask_share,
            unmatched_reference=[item.to_dict() for item in self.unmatched_ref],
            unmatched_backend=[item.to_dict() for item in self.unmatched_out],
            excused=[item.to_dict() for item in self.excused],
            reasons=list(self.reasons),
        )
