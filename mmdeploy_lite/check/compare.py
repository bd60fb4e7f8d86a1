"""Compare what the backend answered with what PyTorch answered, for one image."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mmdeploy_lite.check.answers import DetectionEvidence, Detections, RawTensors, SegEvidence, SegMap
from mmdeploy_lite.check.comparison import Comparison, Unmatched
from mmdeploy_lite.check.excuses import Excuses
from mmdeploy_lite.check.masks import clear_differences
from mmdeploy_lite.check.matching import Edges, Matching, find_edges
from mmdeploy_lite.check.tolerance import Tolerance

__all__ = ['Comparison', 'Unmatched', 'compare_detections', 'compare_seg_map', 'compare_tensors']


def compare_detections(
    ref: Detections,
    out: Detections,
    image_size: tuple[int, int],
    tol: Tolerance | None = None,
    evidence: DetectionEvidence | None = None,
    *,
    num_classes: int | None = None,
) -> Comparison:
    """Compare detections as sets: matched one to one by label, score and box; their order is free.

    Masks are compared for matched pairs, wherever PyTorch is sure of the pixel. A detection without partner makes the
    answers unequal unless ``evidence`` shows that PyTorch itself is undecided about it
    (:mod:`mmdeploy_lite.check.excuses`). With more than one and more than ``tol.undecidable_share`` of the reference's
    detections excused on one side (a swap is one place, though it concerns both sides), the verdict is "undecidable";
    one is always allowed, or no tie could ever be excused on an image with few detections.

    Args:
        ref: PyTorch's answer.
        out: The backend's answer, in the same pixels.
        image_size: (h, w) of the image whose pixels the boxes are in.
        tol: Tolerances; None takes the defaults.
        evidence: What PyTorch shows to be undecided; None excuses nothing.
        num_classes: Labels must be below it; None only asks that they are not negative.

    Raises:
        ValueError: The evidence is malformed. (A malformed answer is unequal, with the reason.)
    """
    tol = tol or Tolerance()
    result = Comparison('detections', ref_count=_size(ref.scores), out_count=_size(out.scores))
    if not _validated(result, ref, out, num_classes) or not _same_masks(result, ref, out):
        return result
    undecided = None
    if evidence is not None and evidence.mask_undecided is not None and ref.masks is not None:
        undecided = evidence.mask_undecided
        if undecided.shape != ref.masks.shape or undecided.dtype != bool:
            raise ValueError(
                f'mask_undecided must be bool of shape {ref.masks.shape}, got {undecided.dtype} {undecided.shape}'
            )
    box_tol = tol.box(image_size)
    edges = find_edges(
        ref.bboxes, ref.scores, ref.labels, out.bboxes, out.scores, out.labels, tol.score, np.full(4, box_tol)
    )
    matching = Matching(len(ref), len(out))
    if ref.masks is not None:
        matching.grow(edges.where(_mask_fits(edges, ref, out, undecided)))
    matching.grow(edges)
    _measure(result, ref, out, matching, undecided)
    if result.clear_pixels and evidence is not None and evidence.mask_rounded is not None:
        rounded = evidence.mask_rounded()
        if rounded is not None:
            undecided = rounded if undecided is None else undecided | rounded
            _measure(result, ref, out, matching, undecided)
    if result.clear_pixels and evidence is not None and evidence.moved is not None:
        changing = _changing_pixels(ref, evidence.moved(), tol, box_tol)
        _measure(result, ref, out, matching, changing if undecided is None else undecided | changing)
    _sort_unmatched(result, ref, out, matching, tol, box_tol, evidence)

    if result.clear_pixels:
        result.reasons.append(f'{result.clear_pixels} mask pixels differ where PyTorch is sure')
    for side, items in (('PyTorch', result.unmatched_ref), ('the backend', result.unmatched_out)):
        if items:
            result.reasons.append(f'{len(items)} detections of {side} without partner, the first: {items[0].reason}')
    if result.reasons:
        result.verdict = 'unequal'
        return result
    places = max(sum(item.side == side for item in result.excused) for side in ('reference', 'backend'))
    mask_area = 0 if ref.masks is None else int(ref.masks.sum())
    for excused, total, what in (
        (places, len(ref), 'detections'),
        (result.excused_pixels, mask_area, 'mask pixels'),
    ):
        _limit_excuses(result, excused, total, what, tol)
    return result


def compare_seg_map(
    ref: SegMap,
    out: SegMap,
    tol: Tolerance | None = None,
    evidence: SegEvidence | None = None,
    *,
    num_classes: int | None = None,
) -> Comparison:
    """Compare label maps pixel by pixel.

    A pixel may differ where PyTorch is undecided, or where the backend answers what PyTorch answers in float64, or
    where PyTorch answers otherwise where less than a rounding of image or weights is moved. With
    more than ``tol.undecidable_share`` of all pixels excused, the verdict is "undecidable".

    Args:
        ref: PyTorch's map.
        out: The backend's map.
        tol: Tolerances; None takes the defaults.
        evidence: What PyTorch shows to be undecided; None excuses nothing.
        num_classes: Classes must be below it; None asks nothing.

    Raises:
        ValueError: The evidence is malformed. (A malformed answer is unequal, with the reason.)
    """
    tol = tol or Tolerance()
    evidence = evidence or SegEvidence()
    result = Comparison('seg_map', ref_count=np.size(ref.seg_map), out_count=np.size(out.seg_map))
    if not _validated(result, ref, out, num_classes):
        return result
    if ref.seg_map.shape != out.seg_map.shape:
        return _unequal(result, f'the map has shape {out.seg_map.shape} instead of {ref.seg_map.shape}')
    differs = ref.seg_map != out.seg_map
    clear = differs
    if evidence.undecided is not None:
        _require_map(evidence.undecided, ref, 'undecided')
        clear = differs & ~evidence.undecided
    if clear.any() and (double := evidence.float64_answer()) is not None:
        _require_map(double, ref, 'float64')
        clear = clear & (out.seg_map != double)
    if clear.any() and evidence.unstable is not None:
        unstable = evidence.unstable()
        _require_map(unstable, ref, 'unstable')
        clear = clear & ~unstable
    result.matched = int((~differs).sum())
    result.clear_pixels = int(clear.sum())
    result.excused_pixels = int(differs.sum()) - result.clear_pixels
    if result.clear_pixels:
        y, x = (int(i) for i in np.argwhere(clear)[0])
        return _unequal(
            result,
            f'{result.clear_pixels} pixels differ where PyTorch is sure, the first at x={x} y={y}: class '
            f'{int(out.seg_map[y, x])} instead of {int(ref.seg_map[y, x])}',
        )
    _limit_excuses(result, result.excused_pixels, ref.seg_map.size, 'pixels', tol)
    return result


def compare_tensors(ref: RawTensors, out: RawTensors, tol: Tolerance | None = None) -> Comparison:
    """Compare raw outputs number by number, within ``tol.tensor_rel`` of each reference tensor's range.

    The range is the largest minus the smallest value; for a constant tensor, its magnitude.

    Args:
        ref: PyTorch's tensors.
        out: The backend's tensors, same names.
        tol: Tolerances; None takes the defaults.
    """
    tol = tol or Tolerance()
    counts = [sum(np.size(value) for value in side.tensors.values()) for side in (ref, out)]
    result = Comparison('tensors', ref_count=counts[0], out_count=counts[1])
    if not _validated(result, ref, out):
        return result
    if set(ref.tensors) != set(out.tensors):
        return _unequal(result, f'the outputs are {sorted(out.tensors)} instead of {sorted(ref.tensors)}')
    for name, wanted in ref.tensors.items():
        got = out.tensors[name]
        if wanted.shape != got.shape:
            _unequal(result, f'{name} has shape {got.shape} instead of {wanted.shape}')
            continue
        if not wanted.size:
            continue
        wanted, got = wanted.astype(np.float64), got.astype(np.float64)
        spread = float(wanted.max() - wanted.min()) or float(np.abs(wanted).max())
        diff = np.abs(wanted - got)
        allowed = tol.tensor_rel * spread
        result.matched += int((diff <= allowed).sum())
        worst = float(diff.max())
        share = worst / spread if spread else worst
        if share > result.worst_tensor_diff or not result.worst_tensor:
            result.worst_tensor_diff, result.worst_tensor = share, name
        if worst > allowed:
            index = tuple(int(i) for i in np.unravel_index(int(diff.argmax()), diff.shape))
            _unequal(
                result,
                f'{name} differs by {worst:.3g} at {index}, {share:.1e} of its range {spread:.3g} '
                f'(allowed {tol.tensor_rel:.1e})',
            )
    return result


def _size(value: object) -> int:
    return len(value) if isinstance(value, np.ndarray) and value.ndim else 0


def _unequal(result: Comparison, reason: str) -> Comparison:
    result.verdict = 'unequal'
    result.reasons.append(reason)
    return result


def _validated(
    result: Comparison,
    ref: Detections | SegMap | RawTensors,
    out: Detections | SegMap | RawTensors,
    num_classes: int | None = None,
) -> bool:
    """Validate both answers; a malformed one is unequal."""
    for side, answer in (('PyTorch', ref), ('the backend', out)):
        try:
            if isinstance(answer, RawTensors):
                answer.validate()
            else:
                answer.validate(num_classes)
        except ValueError as error:
            _unequal(result, f'{side}: {error}')
    return not result.reasons


def _same_masks(result: Comparison, ref: Detections, out: Detections) -> bool:
    """Both have masks of one size, or neither has."""
    if (ref.masks is None) != (out.masks is None):
        owner, other = ('the backend', 'PyTorch') if ref.masks is None else ('PyTorch', 'the backend')
        _unequal(result, f'{owner} answers masks and {other} does not')
        return False
    if ref.masks is None or out.masks is None:
        return True
    result.has_masks = True
    if not len(ref) and not len(out):  # of no mask, mmdet does not always answer the size of the others
        return True
    if ref.masks.shape[1:] != out.masks.shape[1:]:
        _unequal(result, f'the masks are of size {out.masks.shape[1:]} instead of {ref.masks.shape[1:]} (h, w)')
        return False
    return True


def _require_map(value: np.ndarray, ref: SegMap, what: str) -> None:
    if value.shape != ref.seg_map.shape:
        raise ValueError(f'{what} must have the shape of the map {ref.seg_map.shape}, got {value.shape}')


def _mask_fits(edges: Edges, ref: Detections, out: Detections, undecided: np.ndarray | None) -> np.ndarray:
    """(E,) bool: pairs whose masks agree. Only looked at where a detection has several possible partners."""
    assert ref.masks is not None and out.masks is not None
    rows, row_index, row_uses = np.unique(edges.rows, return_inverse=True, return_counts=True)
    cols, col_index, col_uses = np.unique(edges.cols, return_inverse=True, return_counts=True)
    ambiguous = (row_uses[row_index] > 1) | (col_uses[col_index] > 1)
    fits = np.ones(len(edges.rows), bool)
    if ambiguous.any():
        rows, row_at = np.unique(edges.rows[ambiguous], return_inverse=True)
        cols, col_at = np.unique(edges.cols[ambiguous], return_inverse=True)
        soft = None if undecided is None else undecided[rows]
        fits[ambiguous] = clear_differences(ref.masks[rows], out.masks[cols], soft)[row_at, col_at] == 0
    return fits


def _changing_pixels(ref: Detections, answers: Iterable[Detections], tol: Tolerance, box_tol: float) -> np.ndarray:
    """(K, H, W) bool: pixels at which other answers of PyTorch's have another mask of the same detection."""
    assert ref.masks is not None
    changing = np.zeros_like(ref.masks)
    for other in answers:
        if not len(other) or other.masks is None or other.masks.shape[1:] != ref.masks.shape[1:]:
            continue
        edges = find_edges(
            ref.bboxes, ref.scores, ref.labels, other.bboxes, other.scores, other.labels, tol.score, np.full(4, box_tol)
        )
        for row in np.unique(edges.rows):
            # of several that may be it (SOLO has no boxes) the one with the nearest mask, which excuses least
            differs = ref.masks[row] ^ other.masks[edges.cols[edges.rows == row]]
            changing[row] |= differs[differs.sum(axis=(1, 2)).argmin()]
    return changing


def _measure(
    result: Comparison, ref: Detections, out: Detections, matching: Matching, undecided: np.ndarray | None
) -> None:
    """Worst differences of the matched pairs."""
    rows = np.flatnonzero(matching.col_of >= 0)
    cols = matching.col_of[rows]
    result.matched = len(rows)
    if not len(rows):
        return
    score_diff = ref.scores[rows].astype(np.float64) - out.scores[cols]
    box_diff = ref.bboxes[rows].astype(np.float64) - out.bboxes[cols]
    result.worst_score_diff = float(np.abs(score_diff).max())
    result.worst_box_diff = float(np.abs(box_diff).max())
    if ref.masks is None or out.masks is None:
        return
    result.clear_pixels, result.excused_pixels, result.worst_mask_share = 0, 0, 0.0
    for row, col in zip(rows.tolist(), cols.tolist(), strict=True):
        differs = ref.masks[row] ^ out.masks[col]
        clear = differs if undecided is None else differs & ~undecided[row]
        count = int(clear.sum())
        result.clear_pixels += count
        result.excused_pixels += int(differs.sum()) - count
        if count:
            union = int((ref.masks[row] | out.masks[col]).sum())
            result.worst_mask_share = max(result.worst_mask_share, count / union)


def _sort_unmatched(
    result: Comparison,
    ref: Detections,
    out: Detections,
    matching: Matching,
    tol: Tolerance,
    box_tol: float,
    evidence: DetectionEvidence | None,
) -> None:
    """Fill the lists of detections without partner: excused, or not and why they have none."""
    left_ref, left_out = np.flatnonzero(matching.col_of < 0), np.flatnonzero(matching.row_of < 0)
    if not len(left_ref) and not len(left_out):
        return
    excuses = None if evidence is None else Excuses(ref, out, matching, evidence, tol, box_tol)
    excused_ref = {} if excuses is None else excuses.ref
    excused_out = {} if excuses is None else excuses.out
    if excuses is not None:
        result.reasons.extend(excuses.objections)
    for row in left_ref.tolist():
        excuse = excused_ref.get(row)
        reason = excuse or _why(ref, row, out, left_out, tol.score, box_tol)
        item = Unmatched('reference', row, *_facts(ref, row), reason)
        (result.unmatched_ref if excuse is None else result.excused).append(item)
    for row in left_out.tolist():
        excuse = excused_out.get(row)
        reason = excuse or _why(out, row, ref, left_ref, tol.score, box_tol)
        item = Unmatched('backend', row, *_facts(out, row), reason)
        (result.unmatched_out if excuse is None else result.excused).append(item)


def _facts(dets: Detections, row: int) -> tuple[int, float, tuple[float, float, float, float]]:
    x1, y1, x2, y2 = (float(value) for value in dets.bboxes[row])
    return int(dets.labels[row]), float(dets.scores[row]), (x1, y1, x2, y2)


def _why(dets: Detections, row: int, others: Detections, left: np.ndarray, score_tol: float, box_tol: float) -> str:
    """What keeps the nearest detection that the other side has left over from being the partner."""
    label, score, _ = _facts(dets, row)
    name = f'label {label} score {score:.4f}'
    if not len(left):
        return f'{name}: the other side has nothing left to match'
    box_off = np.abs(others.bboxes[left].astype(np.float64) - dets.bboxes[row]).max(axis=1)
    score_off = np.abs(others.scores[left].astype(np.float64) - score)
    label_off = others.labels[left] != label
    wrong = (box_off > box_tol).astype(int) + (score_off > score_tol) + label_off
    best = int(np.lexsort((box_off, wrong))[0])
    if wrong[best] == 3:
        return f'{name}: the other side has nothing like it'
    parts = []
    if label_off[best]:
        parts.append(f'label {int(others.labels[left][best])}')
    if score_off[best] > score_tol:
        parts.append(f'score {float(others.scores[left][best]):.4f}')
    if box_off[best] > box_tol:
        parts.append(f'a box {box_off[best]:.2f} px away')
    if not parts:
        return f'{name}: found once less on the other side'
    return f'{name}: the nearest left on the other side has {" and ".join(parts)}'


def _limit_excuses(result: Comparison, excused: int, total: int, what: str, tol: Tolerance) -> None:
    """Too much that is excused shows nothing either way."""
    if excused > max(1, tol.undecidable_share * total):
        result.verdict = 'undecidable'
        result.reasons.append(
            f'{excused} {what} of {total} are excused as undecided, more than {tol.undecidable_share:.0%}'
        )
