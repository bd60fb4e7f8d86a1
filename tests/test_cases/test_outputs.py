"""Case 19 and what else can be chosen: what goes in, and what comes out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mmdeploy_lite.errors import UnsupportedError
from mmdeploy_lite.testing.images import scene
from mmdeploy_lite.testing.models import find_busy

from .conftest import IMAGES, exported_equal, tiny

SHAPES = {'a': scene(1, 100, 75), 'b': scene(2, 100, 75), 'c': scene(3, 75, 100)}
ONE_CHANNEL = {
    'model.decode_head.num_classes': 2,
    'model.decode_head.out_channels': 1,
    'model.decode_head.threshold': 0.4,
    'model.decode_head.loss_decode.use_sigmoid': True,
}


def head_outputs(model, sample) -> torch.Tensor:
    """(C, h, w) what the network says, resized to the original image, by hand."""
    network = model.task.model
    data = network.data_preprocessor(dict(inputs=[sample.inputs], data_samples=[sample.data_sample]), False)
    with torch.no_grad():
        logits = network.encode_decode(data['inputs'], [data['data_samples'][0].metainfo])
    return torch.nn.functional.interpolate(logits, size=sample.image.shape[:2], mode='bilinear')[0]


@pytest.mark.parametrize('rescale', [True, False])
@pytest.mark.parametrize('outputs', ['seg_logits', 'seg_probs'])
def test_case_19_logits_and_probabilities(outputs: str, rescale: bool, tmp_path: Path) -> None:
    model = tiny('FCN', scale=(80, 60), outputs=outputs, rescale=rescale)
    samples = model.samples(SHAPES)
    exported, verification = exported_equal(model, samples, tmp_path)
    for sample, (reference, answer) in zip(samples, verification.answers, strict=True):
        scores = answer.tensors[outputs]
        assert scores.shape == (19, *(sample.image.shape[:2] if rescale else sample.shape))
        assert scores.dtype == np.float32 and np.ptp(reference.tensors[outputs]) > 0.1
        if outputs == 'seg_probs':
            np.testing.assert_allclose(scores.sum(axis=0), 1, atol=1e-5)
        if rescale:
            wanted = head_outputs(model, sample)
            wanted = wanted.softmax(dim=0) if outputs == 'seg_probs' else wanted
            np.testing.assert_allclose(scores, wanted.numpy(), atol=1e-3 * float(wanted.max() - wanted.min()))


@pytest.mark.parametrize('outputs', [None, 'seg_logits', 'seg_probs'])
def test_case_19_one_channel(outputs: str | None, tmp_path: Path) -> None:
    """A sigmoid head of one channel: ``predict`` keeps the probability, and cuts it at the head's own threshold."""
    model = tiny('FCN', ONE_CHANNEL, scale=(80, 60), outputs=outputs)
    last = model.task.model.decode_head.conv_seg
    samples = model.samples(SHAPES)
    with torch.no_grad():  # in reach of the threshold
        values = torch.stack([head_outputs(model, sample).median() for sample in samples[:2]])
        last.bias -= values.mean() + 0.4
    shares = [float((head_outputs(model, sample).sigmoid() > 0.4).float().mean()) for sample in samples]
    assert any(0.05 < share < 0.95 for share in shares)
    assert any(
        ((head_outputs(model, sample).sigmoid() > 0.4) != (head_outputs(model, sample).sigmoid() > 0.5)).any()
        for sample in samples
    )
    _, verification = exported_equal(model, samples, tmp_path)
    for sample, (_, answer) in zip(samples, verification.answers, strict=True):
        probability = head_outputs(model, sample).sigmoid().numpy()
        if outputs is None:
            wanted = probability[0] > 0.4
            clear = np.abs(probability[0] - 0.4) > 1e-3
            assert (answer.seg_map == wanted)[clear].all()
            continue
        np.testing.assert_allclose(answer.tensors[outputs], probability, atol=1e-3)
        shown = model.task.data_sample(sample, answer).pred_sem_seg.data[0].numpy()
        assert (shown == (answer.tensors[outputs][0] > 0.4)).all()


def test_slide_answers_logits(tmp_path: Path) -> None:
    slide = {'model.test_cfg': dict(mode='slide', crop_size=(64, 64), stride=(43, 43))}
    model = tiny('FCN', slide, scale=(150, 100), outputs='seg_logits')
    samples = model.samples({'a': scene(1, 100, 150), 'b': scene(2, 100, 150)})
    exported_equal(model, samples, tmp_path, dynamic=False)


@pytest.mark.parametrize(
    ('name', 'expected'),
    [
        ('RetinaNet', ['cls_scores_0', 'cls_scores_4', 'bbox_preds_0', 'bbox_preds_4']),
        ('YOLOX', ['cls_scores_2', 'bbox_preds_0', 'objectnesses_2']),
    ],
)
def test_raw_head_outputs(name: str, expected: list[str], tmp_path: Path) -> None:
    model = tiny(name, outputs='raw')
    samples = model.samples(IMAGES)
    exported, verification = exported_equal(model, samples, tmp_path)
    graph = exported.graph.model.graph
    assert set(expected) <= {output.name for output in graph.output}
    assert [value.name for value in graph.input] == ['image']
    assert 'NonMaxSuppression' not in {node.op_type for node in graph.node}
    levels = 5 if name == 'RetinaNet' else 3
    assert len(graph.output) == levels * (2 if name == 'RetinaNet' else 3)
    reference = verification.answers[0][0].tensors
    assert all(np.ptp(value) > 0 for value in reference.values())


def test_raw_is_for_one_stage_detectors() -> None:
    with pytest.raises(UnsupportedError, match='for one-stage detectors'):
        tiny('Faster R-CNN', outputs='raw')
    with pytest.raises(UnsupportedError, match="'raw' is nothing that segmentation can answer"):
        tiny('FCN', outputs='raw')


@pytest.mark.parametrize('dynamic', [True, False])
@pytest.mark.parametrize('name', ['RetinaNet', 'Mask R-CNN'])
def test_preprocessed_input_of_a_detector(name: str, dynamic: bool, tmp_path: Path) -> None:
    """Boxes end at the image, which is what ``img_shape`` is for: 140 x 100 comes padded to 160 x 128."""
    model = tiny(name, scale=(140, 100), preprocess='none')
    samples = model.samples({'a': scene(1, 100, 140), 'b': scene(2, 100, 140), 'c': scene(3, 140, 100)})
    samples = samples if dynamic else samples[:2]
    exported, verification = exported_equal(model, samples, tmp_path, dynamic=dynamic)
    names = [value.name for value in exported.graph.model.graph.input]
    assert names[:3] == ['image', 'img_shape', 'scale_factor']
    assert model.task.feeds(samples[:1])['image'].shape == (1, 3, 128, 160)
    for sample, (reference, _) in zip(samples, verification.answers, strict=True):
        height, width = sample.image.shape[:2]
        assert (reference.bboxes[:, 2] <= width).all() and (reference.bboxes[:, 3] <= height).all()
        if name == 'RetinaNet':
            assert (reference.bboxes[:, 2:] == (width, height)).any(), 'nothing was clipped'


def test_preprocessed_input_of_a_segmentor(tmp_path: Path) -> None:
    options = {'model.data_preprocessor.test_cfg': dict(size_divisor=32)}
    model = tiny('FCN', options, scale=(80, 60), preprocess='none')
    samples = model.samples(SHAPES)
    exported, _ = exported_equal(model, samples, tmp_path)
    assert [value.name for value in exported.graph.model.graph.input] == ['image', 'img_shape', 'ori_shape']


def test_preprocessed_input_is_float32() -> None:
    with pytest.raises(UnsupportedError, match='which is float32, not uint8'):
        tiny('FCN', preprocess='none', dtype='uint8')
    with pytest.raises(UnsupportedError, match="input preprocess 'numpy' is not supported"):
        tiny('FCN', preprocess='numpy')


@pytest.mark.parametrize('options', [{}, {'model.roi_head.mask_head.class_agnostic': True}], ids=['', 'agnostic'])
@pytest.mark.parametrize('rescale', [True, False])
def test_masks_over_boxes_are_pasted_by_the_program(rescale: bool, options: dict, tmp_path: Path) -> None:
    model = tiny('Mask R-CNN', options, outputs='roi_masks', rescale=rescale, batch_size=None)
    samples = model.samples(IMAGES)
    find_busy(model, samples[:3], samples[3])
    exported, verification = exported_equal(model, samples, tmp_path)
    outputs = {output.name for output in exported.graph.model.graph.output}
    assert outputs == {'dets', 'labels', 'num_dets', 'roi_masks'}
    assert 'ori_shape' not in {value.name for value in exported.graph.model.graph.input}
    assert exported.session.run(model.task.feeds(samples[:1]))['roi_masks'].shape[2:] == (28, 28)
    for check in verification.checks[:3]:
        assert check.comparison.has_masks
    assert any(reference.masks.any() for reference, _ in verification.answers)


def test_masks_of_the_whole_image_have_no_boxes() -> None:
    from mmdeploy_lite.testing.models import zoo_model

    with pytest.raises(UnsupportedError, match='masks of the whole image'):
        zoo_model('mmdet::solo/solo_r50_fpn_1x_coco.py', scale=(96, 64), outputs='roi_masks')
