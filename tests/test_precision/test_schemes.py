"""float16 and eight bits on whole files: what becomes less exact, and what must not."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

from mmdeploy_lite.errors import ConfigError
from mmdeploy_lite.export.audit import foreign_operators, invalid_model
from mmdeploy_lite.export.graphs import all_nodes, all_weights
from mmdeploy_lite.precision import FP16, INT8
from mmdeploy_lite.precision.agreement import agreement, share
from mmdeploy_lite.precision.network import find_networks
from mmdeploy_lite.testing.exporting import export
from mmdeploy_lite.testing.images import empty, scene
from mmdeploy_lite.testing.models import find_busy, zoo_model
from mmdeploy_lite.testing.tiny import narrow_fcn, narrow_retinanet

SCALE = (96, 64)
RETINANET = narrow_retinanet(8)
FCN = {
    **narrow_fcn(8),
    'model.pretrained': None,
    'model.test_cfg.mode': 'slide',
    'model.test_cfg.crop_size': (48, 48),
    'model.test_cfg.stride': (32, 32),
}


class File:
    """A small model's file."""

    def __init__(self, config: str, options: dict, folder) -> None:
        model = zoo_model(config, options, scale=SCALE)
        self.task, self.folder = model.task, folder
        self.samples = model.samples({'one': scene(1, 64, 96), 'two': scene(2, 64, 96)})
        if 'retinanet' in config:
            nothing = model.samples({'empty': empty(64, 96)})[0]
            find_busy(model, self.samples, nothing, more_than=5, distinct=5)
        self.path = folder / f'{self.task.name}.onnx'
        self.session = export(self.task, self.samples, folder).session
        self.images = folder / 'images'
        self.images.mkdir()
        for seed in range(3, 8):  # of two orientations
            size = (64, 96) if seed % 2 else (96, 64)
            cv2.imwrite(str(self.images / f'{seed}.png'), scene(seed, *size))
        (self.images / 'notes.txt').write_text('no image')

    def convert(self, scheme) -> tuple[onnx.ModelProto, dict]:
        model, details = scheme.convert(onnx.load(self.path), self.task, lambda sample: True, no_steps)
        assert foreign_operators(model) + invalid_model(model) == []
        return model, details

    def answers(self, model: onnx.ModelProto) -> list:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=['CPUExecutionProvider'])
        names = [value.name for value in session.get_outputs()]
        outputs = [session.run(None, self.task.feeds([sample])) for sample in self.samples]
        return [self.task.answer(dict(zip(names, item, strict=True))) for item in outputs]

    def share(self, model: onnx.ModelProto) -> float:
        """Agreement with the exact file."""
        exact = [self.task.answer(self.session.run(self.task.feeds([sample]))) for sample in self.samples]
        pairs = zip(exact, self.answers(model), strict=True)
        return share([agreement('', one, other) for one, other in pairs])


@contextmanager
def no_steps(total: int):
    yield lambda: None


@pytest.fixture(scope='module')
def detector(tmp_path_factory) -> File:
    config = 'mmdet::retinanet/retinanet_r18_fpn_1x_coco.py'
    return File(config, RETINANET, tmp_path_factory.mktemp('detector'))


@pytest.fixture(scope='module')
def segmentor(tmp_path_factory) -> File:
    """Of any size: its network is in a loop over windows."""
    config = 'mmseg::fcn/fcn_r18-d8_4xb2-80k_cityscapes-512x1024.py'
    return File(config, FCN, tmp_path_factory.mktemp('segmentor'))


def weight_bytes(model: onnx.ModelProto) -> int:
    return sum(len(tensor.raw_data) for tensor in all_weights(model.graph))


def kernels(model: onnx.ModelProto) -> Counter:
    """Element types of the convolutions' weights; mean and std of the image have four axes, too."""
    tensors = [tensor for tensor in all_weights(model.graph) if len(tensor.dims) == 4 and tensor.dims[0] > 1]
    return Counter(tensor.data_type for tensor in tensors)


def types(model: onnx.ModelProto) -> dict[str, int]:
    """Element type of each value of the model's own graph."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    known = {item.name: item.type.tensor_type.elem_type for item in [*graph.value_info, *graph.input, *graph.output]}
    return known | {tensor.name: tensor.data_type for tensor in graph.initializer}


@pytest.mark.parametrize('kind', ['detector', 'segmentor'])
def test_fp16_halves_the_weights_and_leaves_the_rest(kind, request):
    file = request.getfixturevalue(kind)
    exact = onnx.load(file.path)
    model, details = file.convert(FP16())
    assert details['nodes'] > 20 and weight_bytes(model) < 0.55 * weight_bytes(exact)
    assert list(model.graph.input) == list(exact.graph.input)
    assert list(model.graph.output) == list(exact.graph.output)
    assert file.share(model) > 0.9
    kinds = kernels(model)
    assert kinds[TensorProto.FLOAT] == 0 and kinds[TensorProto.FLOAT16] > 15
    if kind == 'detector':
        known = types(model)
        for operator in ('NonMaxSuppression', 'TopK', 'Exp', 'Sigmoid', 'Resize'):
            found = [known[item.input[0]] for item in model.graph.node if item.op_type == operator]
            assert found and set(found) == {TensorProto.FLOAT}, operator
        convolutions = [known[item.output[0]] for item in model.graph.node if item.op_type == 'Conv']
        assert set(convolutions) == {TensorProto.FLOAT16}


def test_more_operators_can_stay_in_float32(detector):
    model, details = detector.convert(FP16(block=['Relu']))
    known = types(model)
    assert {known[item.input[0]] for item in model.graph.node if item.op_type == 'Relu'} == {TensorProto.FLOAT}
    assert details['blocked'] == ['Relu']
    with pytest.raises(ConfigError, match='block is .Relu.; it must be a list'):
        FP16(block='Relu')


@pytest.mark.parametrize('kind', ['detector', 'segmentor'])
def test_int8_quantizes_the_layers_and_no_other(kind, request):
    file = request.getfixturevalue(kind)
    exact = onnx.load(file.path)
    layers = sum(len(network.layers) for network in find_networks(onnx.load(file.path)))
    model, details = file.convert(INT8(calibration=file.images))
    # of the detector, scores and boxes of five levels are left, of the segmentor the last layer
    left = 10 if kind == 'detector' else 1
    assert (details['layers'], details['of_layers'], details['calibration_images']) == (layers - left, layers, 5)
    assert weight_bytes(model) < 0.6 * weight_bytes(exact)  # the detector's last layers are half of it
    counts = Counter(item.op_type for item in all_nodes(model.graph))
    assert counts['QuantizeLinear'] > 15
    for item in all_nodes(model.graph):
        if item.op_type in ('NonMaxSuppression', 'TopK', 'Sigmoid', 'Exp', 'ArgMax'):
            assert not item.input[0].endswith('DequantizeLinear_Output'), item.name
    kinds = kernels(model)
    assert kinds == {TensorProto.INT8: kinds[TensorProto.INT8], TensorProto.FLOAT: 2 if kind == 'detector' else 1}
    assert file.share(model) > 0.6  # random weights: what real ones lose is measured on a dataset


def test_ranges_come_from_the_images(segmentor, tmp_path):
    """With the ranges of a black image, every other is cut off."""
    cv2.imwrite(str(tmp_path / 'black.png'), np.zeros((64, 96, 3), np.uint8))
    good, _ = segmentor.convert(INT8(calibration=segmentor.images))
    bad, details = segmentor.convert(INT8(calibration=tmp_path))
    assert details['calibration_images'] == 1
    assert segmentor.share(bad) < segmentor.share(good) - 0.02


def test_int8_options(segmentor):
    def of(**options) -> tuple[Counter, dict]:
        model, details = segmentor.convert(INT8(calibration=segmentor.images, num_images=2, **options))
        kinds = Counter()
        for tensor in all_weights(model.graph):
            if tensor.name.endswith('_zero_point'):
                kinds[tensor.data_type, tuple(tensor.dims) != ()] += 1
        return kinds, details

    kinds, details = of()
    assert details['calibration_images'] == 2
    assert kinds[TensorProto.UINT8, False] > 10 and kinds[TensorProto.INT8, True] > 10
    signed, all_layers = of(signed_activations=True, keep_last=False, per_channel=False)
    assert all_layers['layers'] == details['layers'] + 1
    assert signed[TensorProto.UINT8, False] == 0 and signed[TensorProto.INT8, True] == 0
    _, fewer = of(exclude=['backbone/layer4', 'stem'])
    assert 0 < fewer['layers'] < details['layers']
    with pytest.raises(Exception, match='nothing is left to quantize'):
        of(exclude='.')


@pytest.mark.parametrize(
    'options, message',
    [
        (dict(), 'deploy.precision.calibration=FOLDER'),
        (dict(calibration='nowhere'), 'there is no folder nowhere'),
        (dict(calibration='IMAGES', num_images=0), 'num_images is 0'),
        (dict(calibration='IMAGES', method='guess'), "method is 'guess'; it must be one of minmax"),
        (dict(calibration='IMAGES', exclude=['(']), r'exclude: .* in \[.\(.\]'),
        (dict(calibration='IMAGES', max_loss=2), 'max_loss is 2; it must be a number from 0 to 1'),
        (dict(calibration='IMAGES', metrics='no'), "metrics is 'no'"),
        (dict(calibration='EMPTY'), 'has no images'),
    ],
)
def test_bad_options(options, message, segmentor, tmp_path):
    folders = dict(IMAGES=segmentor.images, EMPTY=tmp_path)
    if 'calibration' in options:
        options = {**options, 'calibration': folders.get(options['calibration'], options['calibration'])}
    with pytest.raises(ConfigError, match=message):
        INT8(**options)


def test_images_that_the_file_does_not_take(segmentor):
    scheme = INT8(calibration=segmentor.images)
    with pytest.raises(ConfigError, match='of 5 images the file takes none'):
        scheme.convert(onnx.load(segmentor.path), segmentor.task, lambda sample: False, no_steps)
    wide, details = scheme.convert(
        onnx.load(segmentor.path), segmentor.task, lambda sample: sample.shape == (64, 96), no_steps
    )
    assert details['calibration_images'] == 3
