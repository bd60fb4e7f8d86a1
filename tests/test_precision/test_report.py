"""How loss and agreement are counted, and what is refused."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from mmdeploy_lite.check.answers import Detections, RawTensors, SegMap
from mmdeploy_lite.check.report import FileFacts
from mmdeploy_lite.precision.agreement import agreement, share
from mmdeploy_lite.precision.report import PrecisionReport


def dets(*rows: tuple[float, ...]) -> Detections:
    """(x1, y1, x2, y2, score, label)."""
    table = np.array(rows, np.float32).reshape(-1, 6)
    return Detections(table[:, :4], table[:, 4], table[:, 5].astype(np.int64))


A, B, C = (0, 0, 10, 10, 0.9, 1), (20, 20, 30, 30, 0.8, 2), (0, 0, 10, 10, 0.1, 1)


def report(**changes) -> PrecisionReport:
    return PrecisionReport('int8', FileFacts('model.int8.onnx', 10), 40, 0.01, 0.9, **changes)


class TestAgreement:
    def test_detections(self):
        same = agreement('x', dets(A, B), dets(B, A))
        assert (same.reference, same.found, same.answered, same.confirmed, same.worst_score) == (2, 2, 2, 2, 0)
        assert share([same]) == 1
        moved = agreement('x', dets(A, B), dets((2, 0, 12, 10, 0.6, 1), (20, 20, 30, 30, 0.8, 1)))
        assert (moved.found, moved.confirmed) == (1, 1)  # an IoU of 2/3, and another label
        assert moved.worst_score == pytest.approx(0.3, abs=1e-4)
        assert share([same, moved]) == 0.75

    def test_a_box_answers_for_one_only(self):
        found = agreement('x', dets(A, (0, 0, 10, 9, 0.7, 1)), dets(A))
        assert (found.reference, found.found, found.answered, found.confirmed) == (2, 1, 1, 1)

    def test_unsure_ones_count_only_where_there_are_no_others(self):
        assert agreement('x', dets(A, C), dets(A)).reference == 1
        assert agreement('x', dets(C), dets(C)).reference == 1
        below = agreement('x', dets((*A[:4], 0.31, 1)), dets((*A[:4], 0.29, 1)))
        assert (below.reference, below.found, below.answered) == (1, 1, 0)
        assert share([agreement('x', dets(), dets())]) is None

    def test_masks_where_there_are_some(self):
        one, other = dets(A), dets(A)
        one.masks, other.masks = np.zeros((1, 4, 4), bool), np.zeros((1, 4, 4), bool)
        one.masks[0, :2], other.masks[0, 2:] = True, True
        assert agreement('x', one, other).found == 0
        other.masks[0, 0] = True
        other.masks[0, 2:] = False
        assert agreement('x', one, other).found == 1

    def test_maps_and_tensors(self):
        one = np.zeros((4, 5), np.int64)
        other = one.copy()
        other[0] = 3
        found = agreement('x', SegMap(one), SegMap(other))
        assert (found.what, found.found, share([found])) == ('pixels', 15, 0.75)
        tensors = [RawTensors({'a': np.float32(values)}) for values in ([0, 1, 2, 10], [0, 1.05, 2.5, 10])]
        found = agreement('x', *tensors)
        assert (found.what, found.found, share([found])) == ('numbers', 3, 0.75)


class TestLimits:
    def test_the_metric_decides_where_it_was_measured(self):
        metrics = {'coco/bbox_mAP': 0.5, 'coco/bbox_mAP_50': 0.9}
        good = report(images=7, before=metrics, after={'coco/bbox_mAP': 0.49, 'coco/bbox_mAP_50': 0.5})
        assert good.accepted and good.loss == pytest.approx(0.01) and good.main == ['coco/bbox_mAP']
        assert good.summary() == ('int8 accepted: coco/bbox_mAP 0.5 -> 0.49 on 7 images, loss 0.0100 (limit 0.01)')
        bad = report(images=7, before=metrics, after={**metrics, 'coco/bbox_mAP': 0.489})
        assert not bad.accepted and bad.summary().startswith('int8 refused: coco/bbox_mAP 0.5 -> 0.489')
        better = report(before=metrics, after={**metrics, 'coco/bbox_mAP': 0.6})
        assert better.accepted and better.loss == pytest.approx(-0.1)

    def test_percentages_and_the_worst_of_several(self):
        found = report(before={'mIoU': 71.0, 'aAcc': 90.0}, after={'mIoU': 70.5, 'aAcc': 50.0})
        assert found.loss == pytest.approx(0.005) and found.accepted
        before = {'coco/bbox_mAP': 0.5, 'coco/segm_mAP': 0.4}
        assert report(before=before, after={**before, 'coco/segm_mAP': 0.3}).loss == pytest.approx(0.1)
        assert report(before={'mine': 0.5}, after={'mine': 0.4}).loss == pytest.approx(0.1)

    def test_what_is_not_a_number_is_refused(self):
        found = report(before={'mIoU': 71.0}, after={'mIoU': math.nan})
        assert not found.accepted and json.loads(json.dumps(found.to_dict(), allow_nan=False))['loss'] is None
        assert not report(before={'mIoU': 71.0}, after={}).accepted

    def test_agreement_where_nothing_was_measured(self):
        images = [agreement('x', SegMap(np.zeros((1, 10), np.int64)), SegMap(np.int64([[0] * 9 + [1]])))]
        assert report(agreement=images).accepted
        refused = report(agreement=[*images, agreement('y', dets(A), dets())])
        assert not refused.accepted or refused.share >= 0.9
        many = [agreement('x', dets(A, B), dets(A))]
        assert not report(agreement=many).accepted
        assert 'of the detections agree with PyTorch (limit 90%)' in report(agreement=many).summary()

    def test_images_that_show_nothing_decide_nothing(self):
        found = report(agreement=[agreement('x', dets(), dets())])
        assert not found.accepted and 'nothing was found in the images' in found.summary()
