"""Panoptic maps and boxes of masks, against the originals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.structures import InstanceData

THINGS, STUFF = 3, 2


def queries(seed, height=12, width=16, count=10, confident=4.0):
    """Class logits (count, classes and none) and mask logits (count, height, width) of blobs that overlap."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randn(count, THINGS + STUFF + 1, generator=generator) * confident
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing='ij')
    cy, cx = (torch.rand(count, 1, 1, generator=generator) * extent for extent in (height, width))
    size = torch.rand(count, 1, 1, generator=generator) * 6 + 3
    masks = size - ((y - cy) ** 2 + (x - cx) ** 2).sqrt() + torch.rand(count, height, width, generator=generator)
    return classes, masks


class TestMaskFormerPanoptic:
    @pytest.mark.parametrize('filter_low_score', [False, True])
    def test_map(self, traced, filter_low_score):
        def function(classes, masks):
            from mmdet.models import MaskFormerFusionHead

            cfg = ConfigDict(object_mask_thr=0.5, iou_thr=0.6, filter_low_score=filter_low_score)
            head = MaskFormerFusionHead(THINGS, STUFF, test_cfg=cfg)
            return head.panoptic_postprocess(classes, masks).sem_seg.long()

        graph = traced(function, queries(0), ['MaskFormerPanoptic'], [[], [1, 2]], dynamic=True)
        assert graph.unknown == []
        seen = set()
        for args in (*(queries(seed) for seed in range(1, 6)), queries(6, 20, 9), queries(7, confident=0.1)):
            seen |= set(np.unique(graph.check(*args)[0]))
        assert THINGS + STUFF in seen and len(seen & {3, 4}) == 2 and max(seen) >= 2000


class TestHeuristicFusion:
    @staticmethod
    def inputs(seed, count=8, height=12, width=16):
        generator = torch.Generator().manual_seed(seed + 50)
        masks = queries(seed, height, width, count)[1] > 0
        stuff = torch.nn.functional.interpolate(
            torch.randn(1, STUFF + 1, 3, 4, generator=generator), size=(height, width)
        )[0]
        scores, labels = torch.rand(count, generator=generator), torch.randint(THINGS, (count,), generator=generator)
        return masks, scores, labels, stuff + torch.rand(stuff.shape, generator=generator) * 1e-3

    def test_map(self, both):
        def function(masks, scores, labels, stuff):
            from mmdet.models import HeuristicFusionHead

            head = HeuristicFusionHead(THINGS, STUFF, test_cfg=ConfigDict(mask_overlap=0.5, stuff_area_limit=20))
            boxes = scores[:, None].repeat(1, 4)
            results = InstanceData(masks=masks, scores=scores, labels=labels, bboxes=boxes)
            return head._predict_single(results, stuff.clone()).sem_seg.long()

        graph = both(function, self.inputs(0), ['HeuristicFusion'], [[0, 1, 2], [0], [0], [1, 2]], dynamic=True)
        assert graph.unknown == [] and 'Loop' in graph.ops()
        seen, things = set(), []
        for args in (*(self.inputs(seed) for seed in range(1, 6)), self.inputs(6, 3, 20, 9), self.inputs(7, 0)):
            ids = np.unique(graph.check(*args)[0])
            seen |= set(ids)
            things.append((ids >= 1000).sum())
        assert things[-1] == 0 and max(things) < 8 and len(set(things)) > 2
        assert THINGS + STUFF in seen and THINGS in seen


def test_boxes_of_masks(both):
    def function(masks):
        from mmdet.structures.mask import mask2bbox

        return mask2bbox(masks)

    def masks(seed, count, height=7, width=9):
        found = queries(seed, height, width, max(count, 1))[1][:count] > 1
        found[::3] = False
        return found

    graph = both(function, [masks(0, 5)], ['Mask2BBox'], [[0, 1, 2]])
    assert graph.unknown == []
    for args in (masks(1, 5), masks(2, 8, 5, 20), masks(3, 1), masks(4, 0)):
        boxes = graph.check(args)[0]
    assert boxes.shape == (0, 4)
