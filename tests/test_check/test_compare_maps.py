from __future__ import annotations

import numpy as np
import pytest

from mmdeploy_lite.check import RawTensors, SegEvidence, SegMap, Tolerance, compare_seg_map, compare_tensors


def a_map(seed: int = 0) -> SegMap:
    return SegMap(np.random.default_rng(seed).integers(0, 5, (30, 40)))


def changed(pixels: int) -> SegMap:
    out = a_map()
    out.seg_map.flat[:pixels] = (out.seg_map.flat[:pixels] + 1) % 5
    return out


def undecided(pixels: int) -> np.ndarray:
    mask = np.zeros((30, 40), bool)
    mask.flat[:pixels] = True
    return mask


class TestSegMap:
    def test_equal(self) -> None:
        result = compare_seg_map(a_map(), a_map(), num_classes=5)
        assert result.equal and result.matched == result.ref_count == 1200

    def test_one_pixel_is_unequal(self) -> None:
        result = compare_seg_map(a_map(), changed(1))
        assert result.verdict == 'unequal' and result.clear_pixels == 1
        assert '1 pixels differ where PyTorch is sure, the first at x=0 y=0' in result.reasons[0]

    def test_undecided_pixels_may_differ(self) -> None:
        result = compare_seg_map(a_map(), changed(3), evidence=SegEvidence(undecided(3)))
        assert result.equal and (result.clear_pixels, result.excused_pixels) == (0, 3)
        result = compare_seg_map(a_map(), changed(3), evidence=SegEvidence(undecided(2)))
        assert result.verdict == 'unequal' and (result.clear_pixels, result.excused_pixels) == (1, 2)

    def test_float64_must_answer_what_the_backend_answers(self) -> None:
        assert compare_seg_map(a_map(), changed(3), evidence=SegEvidence(float64=changed(3).seg_map)).equal
        evidence = SegEvidence(float64=lambda: a_map().seg_map)
        assert compare_seg_map(a_map(), changed(3), evidence=evidence).verdict == 'unequal'
        other = changed(3).seg_map
        other[0, 0] = (other[0, 0] + 1) % 5
        assert compare_seg_map(a_map(), changed(3), evidence=SegEvidence(float64=other)).clear_pixels == 1
        assert compare_seg_map(a_map(), changed(3), evidence=SegEvidence(float64=lambda: None)).clear_pixels == 3

    def test_where_pytorch_is_unstable_it_may_differ(self) -> None:
        ref = np.zeros((20, 20), dtype=np.int64)
        out = ref.copy()
        out[3, 4] = out[5, 6] = 1
        unstable = np.zeros((20, 20), dtype=bool)
        unstable[3, 4] = True
        one = compare_seg_map(SegMap(ref), SegMap(out), None, SegEvidence(float64=ref, unstable=lambda: unstable))
        assert one.verdict == 'unequal' and (one.clear_pixels, one.excused_pixels) == (1, 1)
        both = compare_seg_map(SegMap(ref), SegMap(out), None, SegEvidence(unstable=lambda: unstable | (out == 1)))
        assert both.equal and both.excused_pixels == 2
        compare_seg_map(SegMap(ref), SegMap(ref), None, SegEvidence(unstable=lambda: 1 / 0))  # not asked

    def test_float64_runs_only_for_clear_pixels(self) -> None:
        def never() -> np.ndarray:
            raise AssertionError('the float64 run was not needed')

        assert compare_seg_map(a_map(), a_map(), evidence=SegEvidence(float64=never)).equal
        assert compare_seg_map(a_map(), changed(3), evidence=SegEvidence(undecided(3), never)).equal
        with pytest.raises(AssertionError, match='not needed'):
            compare_seg_map(a_map(), changed(3), evidence=SegEvidence(undecided(2), never))

    @pytest.mark.parametrize(('pixels', 'verdict'), [(60, 'equal'), (61, 'undecidable')])
    def test_share(self, pixels: int, verdict: str) -> None:
        result = compare_seg_map(a_map(), changed(pixels), evidence=SegEvidence(undecided(1200)))
        assert result.verdict == verdict
        assert compare_seg_map(
            a_map(), changed(pixels), Tolerance(undecidable_share=0.1), SegEvidence(undecided(1200))
        ).equal

    def test_undecided_pixels_that_agree_are_no_matter(self) -> None:
        assert compare_seg_map(a_map(), a_map(), evidence=SegEvidence(undecided(1200))).equal

    @pytest.mark.parametrize(
        ('out', 'says'),
        [
            (SegMap(a_map().seg_map.T), r'the map has shape (40, 30) instead of (30, 40)'),
            (SegMap(a_map().seg_map[None]), 'seg_map must have 2 dimensions'),
            (SegMap(a_map().seg_map.astype(np.float32)), 'seg_map must be integer'),
            (SegMap(a_map().seg_map + 1), 'seg_map classes must lie in 0..4, got 5'),
        ],
    )
    def test_malformed_is_unequal(self, out: SegMap, says: str) -> None:
        result = compare_seg_map(a_map(), out, num_classes=5)
        assert result.verdict == 'unequal' and says in result.reasons[0]

    def test_malformed_evidence_is_an_error(self) -> None:
        with pytest.raises(ValueError, match='undecided must have the shape of the map'):
            compare_seg_map(a_map(), a_map(), evidence=SegEvidence(np.zeros((3, 3), bool)))


def tensors(**values: object) -> RawTensors:
    return RawTensors({name: np.array(value, np.float32) for name, value in values.items()})


class TestTensors:
    # The range of a is 4 - (-6) = 10.
    ref = tensors(a=[[4.0, -6.0], [0.0, 1.0]], b=[0.5])

    def test_equal(self) -> None:
        result = compare_tensors(self.ref, self.ref)
        assert result.equal and result.matched == result.ref_count == result.out_count == 5

    @pytest.mark.parametrize(('by', 'verdict'), [(0.9e-3, 'equal'), (1.1e-3, 'unequal')])
    def test_tolerance_is_a_part_of_the_range(self, by: float, verdict: str) -> None:
        result = compare_tensors(self.ref, tensors(a=[[4.0, -6.0], [by, 1.0]], b=[0.5]))
        assert result.verdict == verdict and result.worst_tensor == 'a'
        assert result.worst_tensor_diff == pytest.approx(by / 10, rel=1e-3)
        assert verdict == 'equal' or 'a differs by 0.0011 at (1, 0)' in result.reasons[0]

    def test_constant_tensor_has_its_magnitude_as_range(self) -> None:
        assert compare_tensors(tensors(a=[2, 2]), tensors(a=[2, 2.00019])).equal
        assert compare_tensors(tensors(a=[2, 2]), tensors(a=[2, 2.00021])).verdict == 'unequal'
        assert compare_tensors(tensors(a=[0, 0]), tensors(a=[0, 0])).equal
        assert compare_tensors(tensors(a=[0, 0]), tensors(a=[0, 1e-9])).verdict == 'unequal'

    def test_loosened(self) -> None:
        out = tensors(a=[[4.0, -6.0], [0.05, 1.0]], b=[0.5])
        assert compare_tensors(self.ref, out).verdict == 'unequal'
        assert compare_tensors(self.ref, out, Tolerance(tensor_rel=0.01)).equal

    @pytest.mark.parametrize(
        ('out', 'says'),
        [
            (tensors(a=[[4.0, -6.0], [0.0, 1.0]]), "the outputs are ['a'] instead of ['a', 'b']"),
            (tensors(a=[[4.0, -6.0], [0.0, 1.0]], b=[[0.5]]), 'b has shape (1, 1) instead of (1,)'),
            (tensors(a=[[4.0, -6.0], [np.nan, 1.0]], b=[0.5]), 'a has 1 values that are not finite'),
            (tensors(a=[[4.0, -6.0], [0.0, -1.0]], b=[0.5]), 'a differs by 2'),
        ],
    )
    def test_unequal(self, out: RawTensors, says: str) -> None:
        result = compare_tensors(self.ref, out)
        assert result.verdict == 'unequal' and says in result.reasons[0]

    def test_empty_tensor(self) -> None:
        assert compare_tensors(tensors(a=np.zeros((0, 3))), tensors(a=np.zeros((0, 3)))).equal
