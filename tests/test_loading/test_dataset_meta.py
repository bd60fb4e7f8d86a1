from __future__ import annotations

import numpy as np
import pytest
from mmengine.config import Config
from torch import nn

from mmdeploy_lite.loading import build_model, count_classes, load_config, resolve_dataset_meta

PETS = {'CLASSES': ['cat', 'dog'], 'PALETTE': [[1, 2, 3], [4, 5, 6]]}


def config(dataset: dict | None = None) -> Config:
    return Config(dict(test_dataloader=dict(dataset=dataset)) if dataset else dict())


@pytest.mark.parametrize(
    'meta',
    [{'dataset_meta': PETS}, {'dataset_meta': {'classes': ('cat', 'dog'), 'palette': np.array(PETS['PALETTE'])}}, PETS],
    ids=['dataset_meta', 'lower case, array', 'before mmengine'],
)
def test_names_of_the_checkpoint(meta, logged):
    found = resolve_dataset_meta({'meta': {**meta, 'epoch': 1}}, config(), 'mmdet', 2)
    assert found == {'classes': ('cat', 'dog'), 'palette': [(1, 2, 3), (4, 5, 6)]}
    assert logged == []


@pytest.mark.parametrize(
    'dataset',
    [
        dict(type='CocoDataset', metainfo=dict(classes=('cat', 'dog'), palette=PETS['PALETTE'])),
        dict(
            type='RepeatDataset',
            dataset=dict(type='CocoDataset', metainfo=dict(CLASSES=['cat', 'dog'], PALETTE=PETS['PALETTE'])),
        ),
        dict(type='ConcatDataset', datasets=[dict(type='NotRegistered', metainfo=PETS)]),
    ],
    ids=['plain', 'wrapped', 'concatenated'],
)
@pytest.mark.parametrize('checkpoint', [None, {}, {'meta': None}, {'meta': {'dataset_meta': {'CLASSES': ['one']}}}])
def test_names_of_the_config(dataset, checkpoint, logged):
    found = resolve_dataset_meta(checkpoint, config(dataset), 'mmdet', 2)
    assert found == {'classes': ('cat', 'dog'), 'palette': [(1, 2, 3), (4, 5, 6)]}
    assert logged == []


@pytest.mark.parametrize(
    ('scope', 'kind', 'count', 'first'),
    [
        ('mmdet', 'CocoDataset', 80, 'person'),
        ('mmseg', 'ADE20KDataset', 150, 'wall'),
        ('mmdet', 'mmseg.CityscapesDataset', 19, 'road'),
    ],
)
def test_names_of_the_dataset_class(scope, kind, count, first):
    found = resolve_dataset_meta(None, config(dict(type=kind)), scope, count)
    assert len(found['classes']) == len(found['palette']) == count and found['classes'][0] == first


def test_names_in_a_file(tmp_path):
    (tmp_path / 'names.txt').write_text('cat\ndog\n')
    dataset = dict(type='BaseSegDataset', metainfo=dict(classes=str(tmp_path / 'names.txt')))
    assert resolve_dataset_meta(None, config(dataset), 'mmseg', 2)['classes'] == ('cat', 'dog')


def test_a_single_name():
    assert resolve_dataset_meta({'meta': {'CLASSES': 'cat'}}, config(), 'mmdet', 1)['classes'] == ('cat',)


def test_the_colours_of_the_config_for_the_names_of_the_checkpoint():
    dataset = dict(type='CocoDataset', metainfo=dict(classes=('a', 'b'), palette=PETS['PALETTE']))
    found = resolve_dataset_meta({'meta': {'CLASSES': ['cat', 'dog']}}, config(dataset), 'mmdet', 2)
    assert found == {'classes': ('cat', 'dog'), 'palette': [(1, 2, 3), (4, 5, 6)]}


@pytest.mark.parametrize('palette', [None, 'random', [[1, 2, 3]]])
def test_colours_are_made_where_there_are_too_few(palette):
    names = [f'name {index}' for index in range(30)]
    meta = {'meta': {'dataset_meta': {'classes': names, 'palette': palette}}}
    colours = resolve_dataset_meta(meta, config(), 'mmdet', 30)['palette']
    assert len(set(colours)) == 30
    assert all(0 <= value <= 255 for colour in colours for value in colour)


def test_names_that_do_not_fit_are_not_used(logged):
    dataset = dict(type='CocoDataset')
    found = resolve_dataset_meta({'meta': PETS}, config(dataset), 'mmdet', 3)
    assert found['classes'] == ('class_0', 'class_1', 'class_2') and len(found['palette']) == 3
    assert len(logged) == 1
    assert '3 classes, but the checkpoint names 2, the config names 80' in logged[0]


def test_a_model_that_does_not_say_takes_any_number():
    assert len(resolve_dataset_meta({'meta': PETS}, config(), 'mmdet', None)['classes']) == 2


def head(num_classes: int | None = None, **children) -> nn.Module:
    module = nn.Module()
    if num_classes is not None:
        module.num_classes = num_classes
    for name, child in children.items():
        setattr(module, name, nn.ModuleList(child) if isinstance(child, list) else child)
    return module


@pytest.mark.parametrize(
    ('model', 'count'),
    [
        (head(bbox_head=head(3)), 3),
        (head(rpn_head=head(1), roi_head=head(bbox_head=head(4), mask_head=head(9))), 4),
        (head(rpn_head=head(1), roi_head=head(bbox_head=[head(7), head(5)])), 5),
        (head(decode_head=[head(2), head(6)], auxiliary_head=head(9)), 6),
        (head(panoptic_fusion_head=head(133), roi_head=head(bbox_head=head(80))), 133),
        (head(rpn_head=head(1)), 1),
        (head(mask_head=head(8)), 8),
        (head(), None),
    ],
)
def test_which_head_decides(model, count):
    assert count_classes(model) == count


@pytest.mark.parametrize(
    ('name', 'options', 'count'),
    [
        (
            'mmdet::cascade_rcnn/cascade-rcnn_r50_fpn_1x_coco.py',
            {'model.backbone.depth': 18, 'model.neck.in_channels': [64, 128, 256, 512]},
            80,
        ),
        ('mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco-panoptic.py', {}, 133),
    ],
)
def test_real_heads(name, options, count):
    assert build_model(load_config(name, options), None).num_classes == count
