"""Case 27: an input built from the file's metadata alone is what the model's own data preprocessor makes."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import mmdeploy_lite.ops  # noqa: F401  (before mmdet and mmseg)
from mmdeploy_lite.export.metadata import plain
from mmdeploy_lite.export.preprocess import PreprocessSpec
from mmdeploy_lite.runtime import Preprocess

MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]


def detector(**options):
    from mmdet.models import DetDataPreprocessor

    return DetDataPreprocessor(**options)


def segmentor(**options):
    from mmseg.models import SegDataPreProcessor

    return SegDataPreProcessor(size=(64, 64), **options)


@pytest.mark.parametrize('dtype', [torch.uint8, torch.float32])
@pytest.mark.parametrize(
    'make',
    [
        lambda: detector(mean=MEAN, std=STD, bgr_to_rgb=True, pad_size_divisor=32),
        lambda: detector(mean=MEAN, std=STD, bgr_to_rgb=False, pad_size_divisor=1),
        lambda: detector(pad_size_divisor=32, pad_value=114),
        lambda: detector(mean=MEAN, std=STD, bgr_to_rgb=True, pad_size_divisor=32, pad_value=114),
        lambda: segmentor(mean=MEAN, std=STD, bgr_to_rgb=True, pad_val=7, test_cfg=dict(size_divisor=32)),
        lambda: segmentor(mean=MEAN, std=STD, bgr_to_rgb=True, test_cfg=dict(size=(128, 128))),
        lambda: segmentor(bgr_to_rgb=False),
    ],
    ids=['swap', 'plain', 'no mean', '114', 'seg divisor', 'seg size', 'seg plain'],
)
def test_case_27_numpy_from_metadata_alone(make, dtype):
    preprocessor = make()
    from mmdet.structures import DetDataSample
    from mmseg.structures import SegDataSample

    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (3, 75, 100), generator=generator).to(dtype)
    sample_type = SegDataSample if type(preprocessor).__module__.startswith('mmseg') else DetDataSample
    sample = sample_type(metainfo=dict(img_shape=(75, 100), ori_shape=(75, 100)))
    wanted = preprocessor(dict(inputs=[image], data_samples=[sample]), False)['inputs'][0].numpy()
    spec = json.loads(json.dumps(plain(PreprocessSpec.of(preprocessor).to_dict())))
    preprocess = Preprocess(spec)
    got = preprocess(image.numpy())
    assert got.dtype == np.float32 and got.flags.c_contiguous
    assert got.shape == wanted.shape == (3, *preprocess.padded((75, 100)))
    np.testing.assert_allclose(got, wanted, atol=1e-4)
