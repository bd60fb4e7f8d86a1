"""The data preprocessor in the graph, against the model's own."""

from __future__ import annotations

import io
import json

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from mmdeploy_lite.errors import UnsupportedError
from mmdeploy_lite.export import ExportState, TorchScriptExporter, exporting
from mmdeploy_lite.export.allowed import ALLOWED, unknown_warnings
from mmdeploy_lite.export.preprocess import InGraphPreprocess, PreprocessSpec

MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]

DETECTION = {
    'normalized': dict(mean=MEAN, std=STD, bgr_to_rgb=True, pad_size_divisor=32),
    'bgr': dict(mean=MEAN, std=STD, bgr_to_rgb=False, pad_size_divisor=32),
    'rgb_to_bgr': dict(mean=MEAN, std=STD, rgb_to_bgr=True),
    'plain': dict(pad_size_divisor=32),
    'swapped_only': dict(bgr_to_rgb=True),
    'padded_gray': dict(pad_value=114, pad_size_divisor=32),
    'normalized_and_padded_gray': dict(mean=MEAN, std=STD, bgr_to_rgb=True, pad_size_divisor=64, pad_value=114),
    'one_mean': dict(mean=[127.5], std=[128.0]),
}
SEGMENTATION = {
    'normalized': dict(mean=MEAN, std=STD, bgr_to_rgb=True, size=(64, 64)),  # of training: not used
    'divisor': dict(mean=MEAN, std=STD, bgr_to_rgb=True, test_cfg=dict(size_divisor=32)),
    'size': dict(mean=MEAN, std=STD, bgr_to_rgb=True, test_cfg=dict(size=(96, 80)), pad_val=7),
    'plain': dict(),
    'divisor_gray': dict(pad_val=114, test_cfg=dict(size_divisor=32)),
}


def build(kind, options):
    if kind == 'det':
        from mmdet.models.data_preprocessors import DetDataPreprocessor as Preprocessor
    elif kind == 'seg':
        from mmseg.models.data_preprocessor import SegDataPreProcessor as Preprocessor
    else:
        from mmengine.model import ImgDataPreprocessor as Preprocessor
    return Preprocessor(**options)


CASES = [('det', options) for options in DETECTION.values()] + [('seg', options) for options in SEGMENTATION.values()]
CASES += [('img', dict(mean=MEAN, std=STD, bgr_to_rgb=True, pad_size_divisor=16, pad_value=3))]


def own(preprocessor, image):
    """(1, 3, H, W): what the library makes of a (3, h, w) image."""
    from mmseg.structures import SegDataSample

    samples = [SegDataSample()] if getattr(preprocessor, 'test_cfg', None) else None
    return preprocessor(dict(inputs=[image], data_samples=samples), False)['inputs'].numpy()


def picture(seed, height, width, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, height, width), generator=generator).to(dtype)


class Wrapper(nn.Module):
    def __init__(self, preprocess):
        super().__init__()
        self.preprocess = preprocess

    def forward(self, image):
        inputs, (pad_h, pad_w) = self.preprocess(image)
        return inputs, torch.as_tensor(pad_h), torch.as_tensor(pad_w)


def session_of(preprocess, image, dynamic):
    axes = {'image': {2: 'height', 3: 'width'}} if dynamic else {}
    with exporting(ExportState(dynamic=dynamic)):
        graph = TorchScriptExporter().export(Wrapper(preprocess), [image[None]], ['image'], ['inputs', 'h', 'w'], axes)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    buffer = io.BytesIO(graph.model.SerializeToString())
    return graph, onnxruntime.InferenceSession(buffer.getvalue(), options, providers=['CPUExecutionProvider'])


@pytest.mark.parametrize(('kind', 'options'), CASES, ids=str)
@pytest.mark.parametrize('dynamic', [True, False])
@pytest.mark.parametrize('dtype', [torch.float32, torch.uint8])
def test_against_the_models_own(kind, options, dynamic, dtype):
    preprocessor = build(kind, options)
    preprocess = InGraphPreprocess(PreprocessSpec.of(preprocessor))
    graph, session = session_of(preprocess, picture(0, 50, 70, dtype), dynamic)
    if dynamic:  # pad sizes that this test makes outputs are the only Python numbers
        assert [line for line in unknown_warnings(graph.warnings, ALLOWED) if 'test_preprocess' not in line] == []
    for height, width in ((50, 70), (70, 50), (64, 96), (33, 64), (97, 81)) if dynamic else ((50, 70),):
        image = picture(1, height, width, dtype)
        expected = own(preprocessor, image)
        inputs, (pad_h, pad_w) = preprocess(image[None])
        np.testing.assert_allclose(inputs.numpy(), expected, atol=1e-4)
        assert (height + int(pad_h), width + int(pad_w)) == expected.shape[2:]
        answer = session.run(None, {'image': image[None].numpy()})
        np.testing.assert_allclose(answer[0], expected, atol=1e-4)
        assert answer[0].dtype == np.float32
        if dynamic:
            assert (int(answer[1]), int(answer[2])) == (int(pad_h), int(pad_w))


@pytest.mark.parametrize(('kind', 'options'), CASES, ids=str)
def test_from_the_metadata_alone(kind, options):
    """What the file says of itself is enough to build the network's input in NumPy."""
    preprocessor = build(kind, options)
    spec = json.loads(json.dumps(PreprocessSpec.of(preprocessor).to_dict()))
    for height, width in ((50, 70), (64, 96), (97, 81)):
        image = picture(2, height, width)
        array = image.numpy().astype(np.float32)
        if spec['swap_channels']:
            array = array[::-1]
        if spec['mean'] is not None:
            mean, std = (np.array(spec[name], np.float32).reshape(-1, 1, 1) for name in ('mean', 'std'))
            array = (array - mean) / std
        pads = [-height % spec['divisor'], -width % spec['divisor']]
        if spec['size'] is not None:
            pads = [max(target - size, 0) for target, size in zip(spec['size'], (height, width), strict=True)]
        array = np.pad(array, [(0, 0), (0, pads[0]), (0, pads[1])], constant_values=spec['pad_value'])
        np.testing.assert_allclose(array[None], own(preprocessor, image), atol=1e-4)


def test_batch_is_padded_as_one():
    preprocess = InGraphPreprocess(PreprocessSpec.of(build('det', DETECTION['normalized'])))
    images = torch.stack([picture(seed, 50, 70) for seed in (0, 1)])
    inputs, _ = preprocess(images)
    for image, row in zip(images, inputs, strict=True):
        assert torch.equal(preprocess(image[None])[0][0], row)


def test_static_size_leaves_no_trace_of_shapes():
    preprocess = InGraphPreprocess(PreprocessSpec.of(build('det', DETECTION['normalized'])))
    graph, _ = session_of(preprocess, picture(0, 64, 96), False)
    assert 'Pad' not in {node.op_type for node in graph.model.graph.node}  # 64 and 96 need none
    graph, _ = session_of(preprocess, picture(0, 50, 70), False)
    assert 'Shape' not in {node.op_type for node in graph.model.graph.node}


def test_gray_image_is_not_swapped():
    preprocess = InGraphPreprocess(PreprocessSpec.of(build('seg', dict(mean=[1.0], std=[2.0], bgr_to_rgb=True))))
    image = picture(0, 8, 8)[:1]
    assert torch.equal(preprocess(image[None])[0], (image[None] - 1) / 2)


class TestOtherClasses:
    def test_subclass_with_a_forward_of_its_own_is_refused_by_name(self):
        from mmdet.models.data_preprocessors import DetDataPreprocessor

        class GammaPreprocessor(DetDataPreprocessor):
            def forward(self, data, training=False):
                data = super().forward(data, training)
                data['inputs'] = data['inputs'] ** 2.2
                return data

        with pytest.raises(UnsupportedError, match='GammaPreprocessor has a forward of its own'):
            PreprocessSpec.of(GammaPreprocessor())

    def test_class_of_a_known_name_is_refused_too(self):
        from mmdet.models import data_preprocessors

        class DetDataPreprocessor(data_preprocessors.DetDataPreprocessor):
            def forward(self, data, training=False):
                return super().forward(data, training)

        with pytest.raises(UnsupportedError, match='DetDataPreprocessor has a forward of its own'):
            PreprocessSpec.of(DetDataPreprocessor())

    def test_subclass_without_one_is_as_its_base(self):
        from mmdet.models.data_preprocessors import DetDataPreprocessor

        class Named(DetDataPreprocessor):
            pass

        spec = PreprocessSpec.of(Named(mean=MEAN, std=STD, pad_size_divisor=8))
        assert (spec.divisor, spec.mean) == (8, pytest.approx(tuple(MEAN)))

    @pytest.mark.parametrize('name', ['MultiBranchDataPreprocessor', 'BatchFixedSizePad'])
    def test_other_classes_of_the_libraries(self, name):
        from mmdet.models import data_preprocessors

        cls = getattr(data_preprocessors, name)
        instance = cls.__new__(cls)
        nn.Module.__init__(instance)
        with pytest.raises(UnsupportedError, match=name):
            PreprocessSpec.of(instance)

    def test_class_that_is_no_data_preprocessor(self):
        with pytest.raises(UnsupportedError, match='Identity'):
            PreprocessSpec.of(nn.Identity())

    def test_subclass_that_changes_what_forward_calls(self):
        """Its channel swap is the library's; how it casts the data is not."""
        from mmdet.models.data_preprocessors import DetDataPreprocessor

        class Halving(DetDataPreprocessor):
            def cast_data(self, data):
                data = super().cast_data(data)
                return dict(data, inputs=[image / 2 for image in data['inputs']])

        with pytest.raises(UnsupportedError, match='Halving has a cast_data of its own'):
            PreprocessSpec.of(Halving())
