"""Heads that answer masks of the whole image, and the primitives that they are made of, against the originals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.structures import InstanceData
from torch.torch_version import TorchVersion

from mmdeploy_lite.deploy_config import deploy_section, resolve_deploy_config
from mmdeploy_lite.errors import NothingDetectedError, UnsupportedError
from mmdeploy_lite.loading import read_config
from mmdeploy_lite.registry import REWRITERS
from mmdeploy_lite.rewriters.mmdet_masks import exact_scale_factor
from mmdeploy_lite.rewriting import build_rewriters
from mmdeploy_lite.tasks.base import ModelWrapper

NAME = 'mmdeploy_lite::mmdet/instance_segmentation_onnxruntime.py'
SHIPPED = dict(resolve_deploy_config(deploy_section(read_config(NAME), NAME)).rewriters)


def overlapping_masks(seed, n, size=12):
    """(n, size, size) rectangles that overlap, their labels and scores."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(size // 2, (n, 2), generator=generator)
    end = start + torch.randint(2, size // 2, (n, 2), generator=generator)
    places = torch.arange(size)
    inside = (places >= start[..., None]) & (places < end[..., None])
    masks = inside[:, 0, :, None] & inside[:, 1, None, :]
    return masks, torch.randint(2, (n,), generator=generator), torch.rand(n, generator=generator)


class TestMatrixNMS:
    @pytest.mark.parametrize('kernel', ['gaussian', 'linear'])
    def test_any_number_of_masks(self, traced, kernel):
        def function(masks, labels, scores):
            from mmdet.models.layers.matrix_nms import mask_matrix_nms

            args = dict(filter_thr=0.05, nms_pre=20, max_num=8, kernel=kernel)
            scores, labels, masks, keep = mask_matrix_nms(masks, labels, scores, **args)
            return scores, labels, masks, keep

        graph = traced(function, overlapping_masks(0, 12), ['MaskMatrixNMS'], [[0], [0], [0]])
        assert graph.unknown == []
        counts = [len(graph.check(*overlapping_masks(n, n), atol=1e-6)[0]) for n in (1, 5, 12, 40)]
        assert counts[0] == 1 < counts[1] < counts[3] == 8
        masks, labels, scores = overlapping_masks(3, 6)
        for nothing in (overlapping_masks(0, 0), (masks, labels, scores * 0.01)):
            assert len(graph.check(*nothing)[0]) == 0

    def test_areas_that_are_whole_numbers(self, traced):
        def function(masks, labels, scores):
            from mmdet.models.layers.matrix_nms import mask_matrix_nms

            return mask_matrix_nms(masks, labels, scores, mask_area=masks.sum((1, 2)))

        graph = traced(function, overlapping_masks(0, 12), ['MaskMatrixNMS'], [[0], [0], [0]])
        assert len(graph.check(*overlapping_masks(1, 9), atol=1e-6)[0]) == 9

    def test_nothing_left_while_tracing(self, traced):
        from mmdet.models.layers import matrix_nms

        with pytest.raises(NothingDetectedError, match='matrix NMS'):
            traced(
                lambda *args: matrix_nms.mask_matrix_nms(*args, filter_thr=2.0),
                overlapping_masks(0, 4),
                ['MaskMatrixNMS'],
            )


def test_fast_nms(both, boxes_of):
    def function(boxes, scores, coeffs):
        from mmdet.models.layers import fast_nms

        return fast_nms(boxes, scores, coeffs, 0.2, 0.5, 20, 15)

    def candidates(seed, n, high=1.0):
        generator = torch.Generator().manual_seed(seed)
        return boxes_of(seed, n), torch.rand(n, 4, generator=generator) * high, torch.randn(n, 5, generator=generator)

    graph = both(function, candidates(0, 30), ['FastNMS'], [[0], [0], [0]])
    assert graph.unknown == []
    for n in (8, 20, 60):
        dets, labels, coeffs = graph.check(*candidates(n, n), atol=1e-5)
        assert len(dets) == len(labels) == len(coeffs) > 3
    assert len(graph.check(*candidates(1, 30, high=0.1))[0]) == 0


class TestDynamicConv:
    @staticmethod
    def inputs(n):
        generator = torch.Generator().manual_seed(n)
        return torch.randn(1, n * 3, 5, 4, generator=generator), torch.randn(n, 3 * 2 + 2, generator=generator)

    def test_any_number_of_instances(self, both):
        def function(features, params):
            from torch.nn import functional as F

            weight, bias = params.split([6, 2], dim=1)
            n = params.shape[0]
            if n == 0:  # the original cannot
                return features.new_zeros(0, 2, 5, 4)
            return F.conv2d(features, weight.reshape(-1, 3, 1, 1), bias.reshape(-1), groups=n).reshape(n, 2, 5, 4)

        graph = both(function, self.inputs(4), ['DynamicConv'], [[1], [0]])
        assert 'Conv' not in graph.ops()
        for n in (1, 4, 7, 0):
            graph.check(*self.inputs(n), atol=1e-5)

    def test_kernels_that_are_larger_are_refused(self, traced):
        def function(features, params):
            n = params.shape[0]
            return torch.nn.functional.conv2d(features, params[:, :1, None, None].repeat(1, 3, 3, 3), groups=n)

        with pytest.raises(UnsupportedError, match='3 x 3'):
            traced(function, self.inputs(2), ['DynamicConv'])


@pytest.mark.parametrize('sizes', [(333, 500), (640, 427), (211, 97), (720, 1280)])
def test_exact_scale_factor(sizes):
    """The float32 input gives the float64 quotient of two whole numbers again."""
    for resized in (64, 100, 191, 333, 640):
        factor = tuple(resized / size for size in sizes)
        meta = dict(scale_factor=torch.tensor(factor), ori_shape=(torch.tensor(sizes[1]), torch.tensor(sizes[0])))
        assert tuple(float(value) for value in exact_scale_factor(meta)) == factor
    meta['scale_factor'] = torch.tensor([0.7312345, 0.3123457])  # of no whole number
    assert [float(value) for value in exact_scale_factor(meta)] == meta['scale_factor'].double().tolist()


CONV = dict(num_classes=3, in_channels=8, feat_channels=8)
GN = dict(type='GN', num_groups=2)
STRIDES = [8, 8, 16, 32, 32]
SOLO = dict(**CONV, stacked_convs=2, strides=STRIDES, num_grids=[12, 10, 8, 6, 4], norm_cfg=GN)
SOLO_TEST = dict(
    nms_pre=100, score_thr=0.3, mask_thr=0.5, filter_thr=0.05, kernel='gaussian', sigma=2.0, max_per_img=100
)
MASK_FEATURE = dict(feat_channels=8, start_level=0, end_level=2, out_channels=8, norm_cfg=GN)
NMS = dict(nms_pre=40, score_thr=0.3, max_per_img=20, nms=dict(type='nms', iou_threshold=0.5))
HEADS = {
    'SOLO': dict(type='SOLOHead', **SOLO),
    'Decoupled SOLO': dict(type='DecoupledSOLOHead', **SOLO),
    'SOLOv2': dict(type='SOLOV2Head', **SOLO, mask_feature_head=MASK_FEATURE),
    'RTMDet-Ins': dict(
        type='RTMDetInsHead',
        **CONV,
        stacked_convs=1,
        num_prototypes=4,
        dyconv_channels=4,
        anchor_generator=dict(type='MlvlPointGenerator', offset=0, strides=[8, 16, 32]),
        bbox_coder=dict(type='DistancePointBBoxCoder'),
        norm_cfg=dict(type='BN'),
        test_cfg=ConfigDict(**NMS, min_bbox_size=20, mask_thr_binary=0.5),
    ),
}


def build_head(name):
    from mmdet.registry import MODELS

    test_cfg = {} if 'test_cfg' in HEADS[name] else dict(test_cfg=ConfigDict(SOLO_TEST))
    head = MODELS.build({**HEADS[name], **test_cfg}).eval()
    generator = torch.Generator().manual_seed(5)
    for module in head.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.weight.data.normal_(std=1.4 * module.weight[0].numel() ** -0.5, generator=generator)
            if module.bias is not None:
                module.bias.data.normal_(std=0.5, generator=generator)
    if name != 'RTMDet-Ins':
        torch.nn.init.constant_(head.conv_cls.bias, -3.5 if name == 'SOLOv2' else -2.0)  # features of zeros are nothing
    return head.requires_grad_(False)


def features(seed, height, width, strides=(4, 8, 16, 32, 64)):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, 8, height // stride, width // stride, generator=generator) * 2 for stride in strides]


def test_rtmdet_ins_is_refused_where_torch_is_old(monkeypatch):
    head = build_head('RTMDet-Ins')
    rewriter = build_rewriters({'mine': {'type': 'RTMDetInsPostProcess'}}, REWRITERS)['mine']
    monkeypatch.setattr(torch, '__version__', TorchVersion('2.2.2+cpu'))
    with pytest.raises(UnsupportedError, match='RTMDet-Ins need torch 2.3 or newer.* this is 2.2.2'):
        rewriter.check(torch.nn.Sequential(head))
    rewriter.check(torch.nn.Identity())
    monkeypatch.setattr(torch, '__version__', TorchVersion('2.3.0+cpu'))
    rewriter.check(torch.nn.Sequential(head))


@pytest.mark.parametrize('name', HEADS)
def test_head(traced, name, needs_torch):
    """Its own ``predict``, on feature maps of other sizes and for other original sizes than those traced."""
    if name == 'RTMDet-Ins':
        needs_torch(2, 3, 'the size of its masks')
    head = build_head(name)
    strides = (8, 16, 32) if name == 'RTMDet-Ins' else (4, 8, 16, 32, 64)

    def function(ori_shape, scale_factor, *feats):
        from mmdet.structures import DetDataSample

        tracing = torch.jit.is_tracing()
        height, width = (size * strides[0] for size in feats[0].shape[-2:])
        sample = ModelWrapper.set_metainfo(
            DetDataSample(),
            img_shape=(height, width),
            batch_input_shape=(height, width),
            ori_shape=(ori_shape[0], ori_shape[1]) if tracing else tuple(ori_shape.tolist()),
            scale_factor=scale_factor if tracing else tuple(scale_factor.tolist()),
        )
        results: InstanceData = head.predict(tuple(feats), [sample], rescale=True)[0]
        return results.bboxes, results.scores, results.labels.long(), results.masks.bool()

    def inputs(seed, height, width, scale, gain=1.0):
        feats = [level * gain for level in features(seed, height, width, strides)]
        original = torch.tensor([height * scale, width * scale]).long()
        return original, torch.tensor([1 / scale, 1 / scale]), *feats

    graph = traced(function, inputs(0, 128, 192, 2), SHIPPED, [[], [], *([2, 3] for _ in strides)], dynamic=True)
    assert graph.unknown == []
    counts = set()
    for args in (inputs(1, 128, 192, 2), inputs(2, 192, 128, 1), inputs(3, 128, 128, 1.5), inputs(4, 128, 192, 2, 0.0)):
        expected = graph.original(*args)
        order = np.argsort(-expected[1], kind='stable')
        for answer in (graph.eager(*args), graph.run(*args)):
            assert [value.shape for value in answer] == [value.shape for value in expected]
            for value, reference in zip(answer[:3], expected[:3], strict=True):
                np.testing.assert_allclose(value, reference, atol=1e-3, err_msg=str(order))
            assert (answer[3] != expected[3]).sum() <= 1e-4 * expected[3].size
        counts.add(len(expected[1]))
    assert len(counts) >= 3, counts
