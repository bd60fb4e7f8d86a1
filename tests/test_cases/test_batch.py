"""A batch of any size: each image's answer is what it is alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mmdeploy_lite.errors import UnsupportedError
from mmdeploy_lite.testing.exporting import export
from mmdeploy_lite.testing.images import empty, scene
from mmdeploy_lite.testing.models import find_busy

from .conftest import exported_equal, tiny

IMAGES = {'a': scene(1, 150, 190), 'b': scene(2, 150, 190), 'c': scene(3, 150, 190), 'nothing': empty(150, 190)}
SLIDE = {'model.test_cfg': dict(mode='slide', crop_size=(64, 64), stride=(43, 43))}


def arrays(answer) -> list[np.ndarray]:
    values = vars(answer).values()
    return [value for value in values if isinstance(value, np.ndarray)]


@pytest.mark.parametrize(
    ('name', 'options', 'dynamic'),
    [
        ('RetinaNet', {}, True),
        ('YOLOX', {}, False),
        ('RTMDet', {}, True),
        ('Faster R-CNN', {}, True),
        ('Mask R-CNN', {}, True),
        ('FCN', {}, True),
        ('FCN', SLIDE, True),
        ('SegFormer', {}, False),
    ],
    ids=lambda value: value if isinstance(value, str) else '',
)
def test_each_image_is_answered_as_it_is_alone(name: str, options: dict, dynamic: bool, tmp_path: Path) -> None:
    model = tiny(name, options, batch_size=None)
    samples = model.samples(IMAGES)
    if model.task.kind == 'detections':
        find_busy(model, samples[:3], samples[3])
    exported, _ = exported_equal(model, samples, tmp_path, dynamic=dynamic)  # batches of one, two and three
    graph = exported.graph.model.graph
    for value in [*graph.input, *graph.output]:
        assert value.type.tensor_type.shape.dim[0].dim_param == 'batch'
    alone = [exported.answers(sample)[0] for sample in samples]
    if model.task.kind == 'detections':
        assert len(alone[3]) == 0 and len({len(answer) for answer in alone}) > 1
    for order in ([0, 1, 2, 3], [3, 0], [2, 3, 1], [3], [3, 3], [1] * 5):
        for index, answer in zip(order, exported.answers(*(samples[index] for index in order)), strict=True):
            for got, wanted in zip(arrays(answer), arrays(alone[index]), strict=True):
                np.testing.assert_array_equal(got, wanted)


def test_padding_rows(tmp_path: Path) -> None:
    model = tiny('Mask R-CNN', batch_size=None)
    samples = model.samples(IMAGES)
    find_busy(model, samples[:3], samples[3])
    exported, _ = exported_equal(model, samples[:1], tmp_path)
    outputs = exported.session.run(model.task.feeds([samples[3], samples[0]]))
    most = int(outputs['num_dets'].max())
    assert outputs['num_dets'].tolist() == [0, most] and most > 0
    assert outputs['dets'].shape == (2, most, 5) and outputs['labels'].shape == (2, most)
    assert outputs['masks'].shape == (2, most, 150, 190) and outputs['masks'].dtype == bool
    assert (outputs['dets'][0] == 0).all() and (outputs['labels'][0] == -1).all() and not outputs['masks'][0].any()
    assert {name: value.dtype.name for name, value in outputs.items() if name != 'masks'} == {
        'dets': 'float32',
        'labels': 'int64',
        'num_dets': 'int64',
    }


def test_raw_heads_of_any_batch(tmp_path: Path) -> None:
    model = tiny('RetinaNet', outputs='raw', batch_size=None)
    exported_equal(model, model.samples(IMAGES), tmp_path)


def test_a_decoder_that_has_its_layers_first_is_refused(tmp_path: Path) -> None:
    from mmdeploy_lite.testing.models import zoo_model

    layers = {
        'model.encoder.num_layers': 1,
        'model.decoder.num_layers': 2,
        'model.num_queries': 10,
        'model.test_cfg.max_per_img': 10,
    }
    model = zoo_model('mmdet::detr/detr_r50_8xb2-150e_coco.py', layers, scale=(96, 64), outputs='raw', batch_size=None)
    samples = model.samples({'a': scene(1, 64, 96), 'b': scene(2, 64, 96)})
    with pytest.raises(UnsupportedError, match='the batch size cannot be dynamic'):
        export(model.task, samples, tmp_path)
