"""Files that are exported once, and files that are made of a few nodes and show what they were fed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mmdeploy_lite.testing.images import scene

DEMO = Path(__file__).resolve().parents[2] / 'demo' / 'configs'
PIPELINE = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=[40, 30], keep_ratio=True),
    dict(type='PackDetInputs'),
]
CLASSES, PALETTE = ['one', 'zwei', 'три', 'four'], [[255, 0, 0], [0, 255, 0], [0, 0, 255], [9, 8, 7]]


def write_image(path: Path, image: np.ndarray) -> Path:
    """Without loss."""
    path.write_bytes(cv2.imencode('.png', image)[1].tobytes())
    return path


def _constant(name: str, value: Any, dtype: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(value, dtype), name)


def _graph(
    task: str, batch: int | str, channels: int, size: tuple[int | str, int | str], dtype: str, rescale: bool
) -> onnx.ModelProto:
    image_type = {'float32': TensorProto.FLOAT, 'uint8': TensorProto.UINT8}[dtype]
    inputs = [helper.make_tensor_value_info('image', image_type, [batch, channels, *size])]
    node = helper.make_node
    nodes = [
        node('Cast', ['image'], ['pixels'], to=TensorProto.FLOAT),
        node('ReduceMean', ['pixels'], ['mean4'], axes=[1, 2, 3], keepdims=1),
    ]
    constants = [_constant('axes3', [3], np.int64)]
    if rescale and task != 'detection':
        inputs.append(helper.make_tensor_value_info('ori_shape', TensorProto.INT64, [batch, 2]))
        constants.append(_constant('first', 0, np.int64))
        nodes.append(node('Gather', ['ori_shape', 'first'], ['hw']))
    elif task != 'detection':
        nodes.append(node('Shape', ['image'], ['hw'], start=2))
    if task in ('segmentation', 'panoptic'):
        # each pixel the number of its image's mean; of panoptic maps, also the object's
        name = 'seg_map' if task == 'segmentation' else 'panoptic_seg'
        constants.append(_constant('times', 1 if task == 'segmentation' else 1001, np.int64))
        nodes += [
            node('Squeeze', ['mean4', 'axes3'], ['mean3']),
            node('Cast', ['mean3'], ['mean'], to=TensorProto.INT64),
            node('Mul', ['mean', 'times'], ['number']),
            node('Shape', ['image'], ['n'], start=0, end=1),
            node('Concat', ['n', 'hw'], ['nhw'], axis=0),
            node('Expand', ['number', 'nhw'], [name]),
        ]
        outputs = [helper.make_tensor_value_info(name, TensorProto.INT64, [batch, 'h', 'w'])]
    else:
        if rescale:
            inputs.insert(1, helper.make_tensor_value_info('scale_factor', TensorProto.FLOAT, [batch, 2]))
            nodes += [
                node('Concat', ['scale_factor', 'scale_factor'], ['factors'], axis=1),
                node('Unsqueeze', ['factors', 'axes1'], ['divisor']),
            ]
        else:
            constants.append(_constant('divisor', [[[1, 1, 1, 1]]], np.float32))
        boxes = [[4, 6, 20, 24], [0, 0, 9, 9], [8, 3, 12, 30], [1, 1, 2, 2]]
        constants += [
            _constant('axes1', [1], np.int64),
            _constant('boxes', [boxes], np.float32),
            _constant('weights', [[[1], [0.5], [0.25], [0.125]]], np.float32),
            _constant('classes', [[3, 1, 2, 0]], np.int64),
            _constant('range', 255, np.float32),
            _constant('zero', 0, np.float32),
            _constant('four', 4, np.int64),
            _constant('order', [3, 2, 1, 0], np.int64),
            _constant('corner', [0, 0, 0], np.int64),
        ]
        # scores by the image's mean, and as many objects as its last pixel says
        nodes += [
            node('Squeeze', ['mean4', 'axes3'], ['mean3']),
            node('Div', ['mean3', 'range'], ['score']),
            node('Mul', ['score', 'weights'], ['scores']),
            node('Mul', ['score', 'zero'], ['zeros']),
            node('Div', ['boxes', 'divisor'], ['scaled']),
            node('Add', ['scaled', 'zeros'], ['bboxes']),
            node('Concat', ['bboxes', 'scores'], ['dets'], axis=2),
            node('Squeeze', ['zeros', 'axes1'], ['zeros2']),
            node('Cast', ['zeros2'], ['izeros'], to=TensorProto.INT64),
            node('Add', ['classes', 'izeros'], ['labels']),
            node('ReduceMin', ['pixels'], ['least'], axes=[1, 2, 3], keepdims=0),
            node('Cast', ['least'], ['ileast'], to=TensorProto.INT64),
            node('Min', ['ileast', 'four'], ['num_dets']),
        ]
        outputs = [
            helper.make_tensor_value_info('dets', TensorProto.FLOAT, [batch, 4, 5]),
            helper.make_tensor_value_info('labels', TensorProto.INT64, [batch, 4]),
            helper.make_tensor_value_info('num_dets', TensorProto.INT64, [batch]),
        ]
        if task == 'instance_segmentation':
            constants += [
                _constant('half', [[[[0.5]], [[0.0]], [[0.0]], [[0.0]]]], np.float32),
                _constant('k', [4], np.int64),
            ]
            nodes += [
                node('Add', ['half', 'mean4'], ['level']),
                node('Cast', ['level'], ['filled'], to=TensorProto.BOOL),
                node('Shape', ['image'], ['n'], start=0, end=1),
                node('Concat', ['n', 'k', 'hw'], ['nkhw'], axis=0),
                node('Expand', ['filled', 'nkhw'], ['masks']),
            ]
            outputs.append(helper.make_tensor_value_info('masks', TensorProto.BOOL, [batch, 4, 'h', 'w']))
    used = {name for item in nodes for name in item.input}
    graph = helper.make_graph(nodes, 'fake', inputs, outputs, [item for item in constants if item.name in used])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)


@pytest.fixture
def make_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a file of a few nodes.

    ``dets`` are four boxes over ``scale_factor``, with scores 1, 1/2, 1/4, 1/8 of the image's mean; ``num_dets`` is the
    least value in the image; ``seg_map`` is the image's mean everywhere.
    """

    def make(
        task: str = 'detection',
        batch: int | str = 1,
        channels: int = 3,
        size: tuple[int | str, int | str] = ('height', 'width'),
        dtype: str = 'float32',
        rescale: bool = True,
        name: str = 'model.onnx',
        without: tuple[str, ...] = (),
        **metadata: Any,
    ) -> Path:
        model = _graph(task, batch, channels, size, dtype, rescale)
        description: dict[str, Any] = dict(
            version=1,
            task=task,
            codebase='mmseg' if task == 'segmentation' else 'mmdet',
            classes=CLASSES,
            palette=PALETTE,
            pipeline=PIPELINE,
            rescale=rescale,
            dtype=dtype,
            shapes=dict(dynamic=True),
        )
        description.update(metadata)
        entry = model.metadata_props.add(key='mmdeploy_lite')
        entry.value = json.dumps({key: value for key, value in description.items() if key not in without})
        path = tmp_path / name
        onnx.save(model, str(path))
        return path

    return make


@dataclass
class Deployed:
    """A model, deployed on image files.

    Attributes:
        result: of :func:`mmdeploy_lite.apis.deploy`.
        images: the files.
    """

    result: Any
    images: list[Path]


def _deploy(folder: Path, base: str, steps: list[dict[str, Any]], model: Mapping[str, Any], **options: Any) -> Deployed:
    import torch

    from mmdeploy_lite.apis import deploy
    from mmdeploy_lite.testing.models import zoo_model

    torch.set_num_threads(1)
    config = folder / 'config.py'
    loader = dict(dataset=dict(pipeline=steps))
    config.write_text(f'_base_ = {base!r}\nmodel = {dict(model)!r}\ntest_dataloader = {loader!r}\n')
    scale = next(step['scale'] for step in steps if 'scale' in step)
    loaded = zoo_model(str(config), scale=scale).loaded
    weights = dict(state_dict=loaded.model.state_dict(), meta=dict(dataset_meta=dict(loaded.dataset_meta)))
    torch.save(weights, folder / 'weights.pth')
    sizes = [(90, 140), (141, 98), (90, 140)]  # landscape, portrait, and one like the first
    images = [write_image(folder / f'{index}.png', scene(index + 5, *size)) for index, size in enumerate(sizes)]
    result = deploy(config, folder / 'weights.pth', images, work_dir=folder / 'work', cfg_options=options)
    return Deployed(result, images)


@pytest.fixture(scope='session')
def detector(tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    """RTMDet of the demo with random weights; height and width dynamic."""
    steps = [
        dict(type='LoadImageFromFile', backend_args=None),
        dict(type='Resize', scale=(128, 128), keep_ratio=True),
        dict(type='Pad', size=(128, 128), pad_val=dict(img=(114, 114, 114))),
        dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
    ]
    return _deploy(tmp_path_factory.mktemp('detector'), str(DEMO / 'detector.py'), steps, {})


@pytest.fixture(scope='session')
def segmentor(tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    """UPerNet of the demo, slide, with random weights and a uint8 input; the size is fixed."""
    steps = [
        dict(type='LoadImageFromFile'),
        dict(type='Resize', scale=(96, 80), keep_ratio=True),
        dict(type='PackSegInputs'),
    ]
    windows = dict(test_cfg=dict(crop_size=(64, 64), stride=(48, 48)))
    options = {'deploy.input.dtype': 'uint8'}
    return _deploy(tmp_path_factory.mktemp('segmentor'), str(DEMO / 'segmentor.py'), steps, windows, **options)


@pytest.fixture(scope='session')
def mask_rcnn(tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    """Mask R-CNN on a narrow ResNet-18 with random weights; height and width dynamic."""
    steps = [
        dict(type='LoadImageFromFile'),
        dict(type='Resize', scale=(144, 96), keep_ratio=True),
        dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
    ]
    model = dict(
        backbone=dict(depth=18, base_channels=8, stem_channels=8, init_cfg=None),
        neck=dict(in_channels=[8, 16, 32, 64], out_channels=16),
        rpn_head=dict(in_channels=16, feat_channels=16),
        roi_head=dict(
            bbox_roi_extractor=dict(out_channels=16),
            mask_roi_extractor=dict(out_channels=16),
            bbox_head=dict(in_channels=16, fc_out_channels=32, num_classes=5),
            mask_head=dict(in_channels=16, conv_out_channels=8, num_classes=5),
        ),
        test_cfg=dict(rpn=dict(nms_pre=100, max_per_img=40), rcnn=dict(max_per_img=15)),
    )
    base = 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'
    return _deploy(tmp_path_factory.mktemp('mask_rcnn'), base, steps, model)
