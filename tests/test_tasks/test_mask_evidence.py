"""What is recorded of masks while PyTorch answers."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict
from torch import nn

import mmdeploy_lite.ops  # noqa: F401  (before mmdet)
from mmdeploy_lite.check.answers import Detections
from mmdeploy_lite.rewriting import RewriteContext
from mmdeploy_lite.tasks.mask_evidence import RecordPoints, RecordQueries, RecordThreshold


def answer(masks, scores):
    count = len(masks)
    return Detections(np.zeros((count, 4), np.float32), np.float32(scores), np.zeros(count, np.int64), masks)


class TestThreshold:
    @pytest.mark.parametrize('key', ['mask_thr', 'mask_thr_binary'])
    def test_stands_in_the_config_of_a_head_and_goes_again(self, key):
        model = nn.Module()
        model.mask_head = nn.Module()
        model.mask_head.test_cfg = ConfigDict({key: 0.4, 'score_thr': 0.1})
        record = RecordThreshold(0.4, 1e-4)
        probabilities = torch.tensor([[[0.39995, 0.40005, 0.5], [0.3, 0.4, 0.4002]]])
        with pytest.raises(ZeroDivisionError), record.in_place_of_thresholds(model):
            threshold = copy.deepcopy(model.mask_head.test_cfg)[key]
            assert (probabilities > threshold).tolist() == (probabilities > 0.4).tolist()
            assert (probabilities >= threshold).tolist() == (probabilities >= 0.4).tolist()
            assert threshold >= 0 and not threshold < 0 and float(threshold) == 0.4
            1 / 0  # noqa: B018
        assert model.mask_head.test_cfg[key] == 0.4 and isinstance(model.mask_head.test_cfg[key], float)
        assert record.is_of(answer(np.ones((1, 2, 3), bool), [1]))
        assert not record.is_of(answer(np.ones((2, 2, 3), bool), [1, 1]))
        assert record.undecided().tolist() == [[[True, True, False], [False, True, False]]]
        assert record.undecided(np.array([0.15])).sum() == 6

    def test_rounding_is_that_of_the_same_mask_in_float64(self):
        single, double = RecordThreshold(0.5, 1e-4), RecordThreshold(0.5, 1e-4)
        single.probabilities = np.full((2, 3, 3), 0.5, np.float32)
        double.probabilities = np.stack([np.full((3, 3), 0.7), np.full((3, 3), 0.50001)])
        masks = np.zeros((2, 3, 3), bool)
        moved = single.rounding(answer(masks, [0.9, 0.1]), answer(masks, [0.1, 0.9]), double)
        np.testing.assert_allclose(moved, [1e-5, 0.2], rtol=1e-3)


def test_masks_of_queries_in_the_order_of_the_answer():
    from mmdet.models import MaskFormerFusionHead

    generator = torch.Generator().manual_seed(0)
    classes, masks = torch.randn(6, 4, generator=generator), torch.randn(6, 5, 7, generator=generator)
    head = MaskFormerFusionHead(2, 1, test_cfg=ConfigDict(max_per_image=8))
    record = RecordThreshold(0.5, 1e-4)
    with RewriteContext({'queries': RecordQueries(record)}):
        found = head.instance_postprocess(classes, masks)
    assert 0 < len(found) < 8  # those of the class without objects are dropped
    assert ((record.probabilities > 0.5) == found.masks.numpy()).all()


def test_points_that_may_be_refined_or_not():
    from mmdet.models.roi_heads.mask_heads import MaskPointHead

    logits = torch.tensor([[5.0, 1.0, -0.2, 0.4], [0.1, 3.0, 0.4001, -4.0]])[None, None]
    head = MaskPointHead(1, in_channels=4, fc_channels=4)
    record = RecordPoints(1e-4)
    with RewriteContext({'points': record}):
        points, _ = head.get_roi_rel_points_test(
            logits, torch.zeros(1, dtype=torch.long), ConfigDict(subdivision_num_points=3)
        )
    assert sorted(points[0].tolist()) == [2, 3, 4]  # of the smallest logits
    assert record.unsure.flatten().nonzero().flatten().tolist() == [3, 6]
