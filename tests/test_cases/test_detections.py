"""Cases 1 to 11 and 29: detections are the same detections.

Each asserts in PyTorch first that its images exercise what the case is about.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import mmcv.ops
import numpy as np
import pytest
import torch

from mmdeploy_lite.check.answers import NmsCall
from mmdeploy_lite.errors import UnsupportedError
from mmdeploy_lite.tasks import TestPipeline
from mmdeploy_lite.testing.exporting import export
from mmdeploy_lite.testing.images import scene
from mmdeploy_lite.testing.models import find_busy

from .conftest import exported_equal, tiny

Images = dict[str, np.ndarray]


def kept_by(call: NmsCall, **changes: Any) -> int:
    """How many boxes an NMS of these candidates keeps, with another config."""
    config = {'type': 'nms', 'iou_threshold': call.iou_threshold, 'class_agnostic': call.class_agnostic, **changes}
    arrays = (torch.from_numpy(array) for array in (call.boxes, call.scores, call.idxs))
    return len(mmcv.ops.batched_nms(*arrays, config)[1])


@pytest.mark.parametrize('agnostic', [False, True])
def test_case_01_every_class_keeps_its_own_box(agnostic: bool, images: Images, tmp_path: Path) -> None:
    model = tiny('Faster R-CNN', {'model.roi_head.bbox_head.reg_class_agnostic': agnostic})
    samples = model.samples(images)
    find_busy(model, samples[:3], samples[3])
    call = model.task.reference(samples[0])[1].nms_calls[-1]
    assert len(np.unique(call.idxs)) > 1
    # class-specific: no two candidates have one box; agnostic: a proposal has the same box in each of its classes
    assert (len(np.unique(call.boxes, axis=0)) < len(call.boxes)) == agnostic
    exported_equal(model, samples, tmp_path)


def test_case_02_rpn_suppresses_within_a_level_only(images: Images, tmp_path: Path) -> None:
    model = tiny('Faster R-CNN')
    samples = model.samples(images)
    find_busy(model, samples[:3], samples[3])
    call = model.task.reference(samples[0])[1].nms_calls[0]
    assert len(np.unique(call.idxs)) > 2 and kept_by(call, class_agnostic=True) < kept_by(call)
    exported_equal(model, samples, tmp_path)


def test_case_03_boxes_end_at_the_image_not_at_its_padding(tmp_path: Path) -> None:
    model = tiny('RetinaNet', {'model.data_preprocessor.pad_size_divisor': 32}, scale=(140, 100))
    samples = model.samples({'a': scene(1, 100, 140), 'b': scene(2, 140, 100), 'c': scene(3, 90, 100)})
    assert samples[0].shape == (100, 140) and samples[2].shape not in ((100, 140), (140, 100))
    _, verification = exported_equal(model, samples, tmp_path)
    answer = verification.answers[0][1]
    assert answer.bboxes[:, 0::2].max() == 140 and answer.bboxes[:, 1::2].max() == 100


@pytest.mark.parametrize('cap', [None, 12])
def test_case_04_yolox_one_label_per_prior_and_no_cap(cap: int | None, images: Images, tmp_path: Path) -> None:
    options = {'model.test_cfg.score_thr': 0.0005, 'model.test_cfg.nms.iou_threshold': 0.9}
    if cap is not None:
        options['model.test_cfg.nms.max_num'] = cap
    model = tiny('YOLOX', options)
    samples = model.samples(images)
    reference = model.task.reference(samples[0])[0]
    assert len(np.unique(reference.bboxes, axis=0)) == len(reference), 'one label per prior'
    assert len(reference) > 100 if cap is None else len(reference) == cap
    exported_equal(model, samples, tmp_path)


def test_case_05_pairs_are_filtered_before_nms_pre(images: Images, tmp_path: Path) -> None:
    options = {'model.test_cfg.nms_pre': 50, 'model.bbox_head.num_classes': 20}
    model = tiny('RetinaNet', options)
    samples = model.samples(images)
    find_busy(model, samples[:3], samples[3])
    _, evidence = model.task.reference(samples[0])
    levels = len(model.task.model.bbox_head.prior_generator.strides)
    assert 50 < len(evidence.nms_calls[-1].scores) <= 50 * levels, 'some levels have more pairs above score_thr than 50'
    assert evidence.rejected
    exported_equal(model, samples, tmp_path)


def test_case_06_small_boxes_are_removed_although_the_traced_image_has_none(tmp_path: Path) -> None:
    """Both images are of one size for the network; in the first one's own pixels every box is large."""
    model = tiny('RetinaNet', {'model.test_cfg.min_bbox_size': 8, 'model.test_cfg.max_per_img': 300})
    model.task.model.bbox_head.retina_reg.weight *= 0.1  # boxes close to their anchors, none clipped to nothing
    large, small = model.samples({'large': scene(1, 1280, 1600), 'small': scene(1, 32, 40)})
    assert large.shape == small.shape
    find_busy(model, [large, small], None)

    def count(sample: Any, size: int) -> int:
        model.task.model.bbox_head.test_cfg.min_bbox_size = size
        return len(model.task.reference(sample)[1].nms_calls[-1].scores)

    assert count(large, 0) == count(large, 8) and count(small, 0) > count(small, 8) > 0
    exported_equal(model, [large, small], tmp_path)


def test_case_07_class_agnostic_nms(images: Images, tmp_path: Path) -> None:
    model = tiny('RetinaNet', {'model.test_cfg.nms.class_agnostic': True, 'model.test_cfg.max_per_img': 1000})
    samples = model.samples(images)
    find_busy(model, samples[:3], samples[3])
    call = model.task.reference(samples[0])[1].nms_calls[-1]
    assert len(np.unique(call.idxs)) == 5 and kept_by(call) < kept_by(call, class_agnostic=False)
    exported_equal(model, samples, tmp_path)


@pytest.mark.parametrize(
    ('name', 'option'), [('RetinaNet', 'model.test_cfg.nms'), ('Faster R-CNN', 'model.test_cfg.rcnn.nms')]
)
def test_case_08_other_nms_is_refused_before_tracing(
    name: str, option: str, images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(name)
    test_cfg = model.task.model.test_cfg
    (test_cfg.rcnn if 'rcnn' in option else test_cfg).nms = dict(type='nms_match', iou_threshold=0.5)
    samples = model.samples(images)
    monkeypatch.setattr(torch.onnx, 'export', lambda *args, **kwargs: pytest.fail('it was traced'))
    with pytest.raises(UnsupportedError, match="nms type 'nms_match'") as error:
        export(model.task, samples[:1] * 2, tmp_path)
    assert f'--cfg-options {option}.type=nms' in str(error.value)


def test_case_08_soft_nms(images: Images, tmp_path: Path) -> None:
    soft = dict(type='soft_nms', iou_threshold=0.5, min_score=0.05, _delete_=True)
    model = tiny('RetinaNet', {'model.test_cfg.nms': soft, 'model.test_cfg.max_per_img': 30})
    samples = model.samples(images)
    find_busy(model, samples[:3], samples[3])
    exported, _ = exported_equal(model, samples, tmp_path)
    assert 'Loop' in {node.op_type for node in exported.graph.model.graph.node}


@pytest.mark.parametrize('classes', [1, 3])
@pytest.mark.parametrize('name', ['RetinaNet', 'Faster R-CNN'])
def test_case_09_softmax_with_background(name: str, classes: int, images: Images, tmp_path: Path) -> None:
    options: dict[str, Any] = {'model.roi_head.bbox_head.num_classes': classes}
    if name == 'RetinaNet':
        loss = dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0, _delete_=True)
        options = {'model.bbox_head.loss_cls': loss, 'model.bbox_head.num_classes': classes}
    model = tiny(name, options)
    samples = model.samples(images)
    find_busy(model, samples, None)
    _, verification = exported_equal(model, samples, tmp_path)
    labels = np.concatenate([answer.labels for _, answer in verification.answers])
    assert set(labels) == set(range(classes)), 'the last class is there, the background is not'


@pytest.mark.parametrize('traced', [0, 1])
def test_case_10_topk_of_more_than_there_is(traced: int, tmp_path: Path) -> None:
    model = tiny('RetinaNet')
    image = scene(1, 128, 128)
    samples = [model.sample_at('64', image, (64, 64)), model.sample_at('large', scene(2, 300, 300), (224, 256))]
    find_busy(model, samples, None)
    per_place = model.task.model.bbox_head.prior_generator.num_base_priors[0]
    assert model.task.model.test_cfg.nms_pre == 1000
    assert per_place * (64 // 128 + 1) == 9 < 1000 < per_place * (224 // 8) * (256 // 8)
    exported_equal(model, samples, tmp_path, samples[traced])


@pytest.mark.parametrize('rescale', [True, False])
def test_case_11_not_square_without_keeping_the_ratio(rescale: bool, images: Images, tmp_path: Path) -> None:
    model = tiny('Mask R-CNN', rescale=rescale)
    steps = copy.deepcopy(model.steps)
    next(step for step in steps if step['type'] == 'Resize')['keep_ratio'] = False
    model.task.pipeline = TestPipeline(steps)
    samples = model.samples(images)
    factors = [sample.data_sample.scale_factor for sample in samples]
    assert all(abs(sx - sy) > 0.1 for sx, sy in factors[1:2]) and len(set(factors)) == 2
    find_busy(model, samples[:3], samples[3])
    _, verification = exported_equal(model, samples, tmp_path)
    for sample, (_, answer) in zip(samples, verification.answers, strict=True):
        assert answer.masks.shape[1:] == (sample.image.shape[:2] if rescale else sample.shape)


def test_case_29_a_pad_in_the_pipeline_counts_as_image(images: Images, tmp_path: Path) -> None:
    model = tiny('RTMDet')
    samples = model.samples(images)
    find_busy(model, samples[:3], samples[3])
    _, verification = exported_equal(model, samples, tmp_path)
    landscape, portrait = (answer for _, answer in verification.answers[:2])
    height, width = images['landscape'].shape[:2]
    assert landscape.bboxes[:, 1::2].max() > height and landscape.bboxes[:, 0::2].max() <= width + 0.1
    assert portrait.bboxes[:, 0::2].max() > height and portrait.bboxes[:, 1::2].max() <= width + 0.1
