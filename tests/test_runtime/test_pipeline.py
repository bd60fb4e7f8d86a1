"""Every step against the library's own, bit for bit."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest

import mmdeploy_lite.ops  # noqa: F401  mmdet needs it where mmcv has no compiled extension
from mmdeploy_lite.errors import ImageError, UnsupportedError
from mmdeploy_lite.export.metadata import plain
from mmdeploy_lite.loading import use_scope
from mmdeploy_lite.runtime import Pipeline, check_steps
from mmdeploy_lite.runtime.image import COLOR_TYPES
from mmdeploy_lite.runtime.pipeline import _fitted, _scaled
from mmdeploy_lite.testing.images import scene

LOAD = dict(type='LoadImageFromFile')
SIZES = {'landscape': (90, 141), 'portrait': (133, 70), 'odd square': (61, 61), 'tiny': (5, 7), 'long': (9, 250)}
RESIZES = [
    dict(scale=(64, 96), keep_ratio=True),
    dict(scale=(333, 200), keep_ratio=True),
    dict(scale=(97, 53), keep_ratio=False),
    dict(scale=(97, 53)),
    dict(scale=50),
    dict(scale=50, keep_ratio=True),
    dict(scale=1.7, keep_ratio=True),
    dict(scale_factor=0.7),
    dict(scale_factor=(0.7, 1.3)),
    dict(scale_factor=(0.7, 1.3), keep_ratio=True),
    dict(scale=(64, 96), keep_ratio=True, clip_object_border=False, backend='cv2'),
    *(dict(scale=(70, 50), interpolation=name) for name in ('nearest', 'bicubic', 'area', 'lanczos')),
]
PADS = [
    dict(size=(150, 260)),
    dict(size=(8, 100)),  # smaller than some: nothing is cut off
    dict(size_divisor=32),
    dict(pad_to_square=True),
    dict(pad_to_square=True, size_divisor=32),
    dict(size_divisor=32, pad_val=114),
    dict(size_divisor=32, pad_val=dict(img=7)),
    dict(size_divisor=32, pad_val=dict(img=(10, 20, 30), seg=255)),
    dict(size_divisor=32, pad_val=dict(img=114.0)),  # OpenCV fills the first channel only
    dict(size_divisor=32, pad_val=dict(seg=255)),
    *(dict(size_divisor=4, padding_mode=mode) for mode in ('edge', 'reflect', 'symmetric')),
]
EDGES = [dict(scale=64, max_size=100), dict(scale=(64, 80), max_size=1000), dict(scale=40, max_size=41)]
CENTER = dict(type='RandomCenterCropPad', ratios=None, border=None, mean=[1, 2, 3], std=[1, 1, 1], test_mode=True)
DETECTION = [
    *([dict(type='Resize', **arguments)] for arguments in RESIZES),
    *([dict(type='FixScaleResize', **arguments)] for arguments in RESIZES[:9]),
    *([dict(type='Pad', **arguments)] for arguments in PADS),
    *([dict(type='ResizeShortestEdge', **arguments)] for arguments in EDGES),
    [dict(type='ResizeShortestEdge', scale=64)],
    [dict(type='ResizeShortestEdge', scale=64, max_size=90, keep_ratio=True, interpolation='nearest')],
    [dict(type='ResizeShortestEdge', scale=64, resize_type='FixScaleResize', keep_ratio=True)],
    [dict(type='FixShapeResize', width=80, height=50)],
    [dict(type='FixShapeResize', width=80, height=50, keep_ratio=True)],
    [dict(type='FixShapeResize', width=80, height=90, keep_ratio=True, pad_val=dict(img=(1, 2, 3)))],
    [dict(type='Resize', scale=(90, 80), keep_ratio=True), dict(type='Resize', scale=(50, 40))],
    [dict(type='Pad', size_divisor=16), dict(type='Resize', scale=(90, 80), keep_ratio=True)],
    [dict(type='mmdet.Resize', scale=(90, 80), keep_ratio=True), dict(type='mmdet.Pad', size=(90, 90), pad_val=114)],
    [dict(type='mmseg.ResizeToMultiple', size_divisor=16)],
    [dict(type='mmseg.ResizeShortestEdge', scale=64, max_size=100)],
    [],
    [dict(CENTER, to_rgb=True, test_pad_mode=['logical_or', 31], test_pad_add_pix=1)],
    [dict(CENTER, to_rgb=False, test_pad_mode=['logical_or', 127])],
    [dict(type='Resize', scale=(70, 50)), dict(CENTER, to_rgb=False, test_pad_mode=['size_divisor', 32])],
    [dict(CENTER, to_rgb=False, test_pad_mode=['size_divisor', 3])],  # an even side is padded to an odd one
]
SEGMENTATION = [
    [dict(type='Resize', scale=(64, 96), keep_ratio=True)],
    [dict(type='Resize', scale=(97, 53))],
    [dict(type='Pad', size=(150, 260))],
    *([dict(type='ResizeShortestEdge', **arguments)] for arguments in EDGES),
    [dict(type='ResizeToMultiple')],
    [dict(type='ResizeToMultiple', size_divisor=(8, 16), interpolation='nearest')],
    [dict(type='Resize', scale=(64, 96), keep_ratio=True), dict(type='ResizeToMultiple', size_divisor=20)],
    [],
]
CASES = [('mmdet', steps) for steps in DETECTION] + [('mmseg', steps) for steps in SEGMENTATION]


@pytest.fixture(scope='module')
def files(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp('images')
    found = {}
    for index, (name, size) in enumerate(SIZES.items()):
        found[name] = folder / f'{name}.png'
        found[name].write_bytes(cv2.imencode('.png', scene(index, *size))[1].tobytes())
    return found


def library(codebase: str, steps: list[dict]):
    """The library's own pipeline as a function of a file: its tensor and metainfo."""
    from mmengine.dataset import Compose

    use_scope(codebase)
    compose = Compose(steps)

    def run(path: Path):
        data = compose(dict(img_path=str(path), img_id=0))
        return data['inputs'].numpy(), data['data_samples'].metainfo

    return run


def complete(codebase: str, steps: list[dict], **load) -> list[dict]:
    keys = ('img_path', 'ori_shape', 'img_shape', 'scale_factor', 'border')
    load = {**load, **dict(to_float32=True)} if any(step['type'] == CENTER['type'] for step in steps) else load
    pack = {'mmdet': 'PackDetInputs', 'mmseg': 'PackSegInputs'}[codebase]
    return [dict(LOAD, **load), *steps, dict(type=pack, meta_keys=keys)]


def assert_same(codebase: str, steps: list[dict], files: dict[str, Path]) -> None:
    reference = library(codebase, steps)
    check_steps(steps, codebase)
    ours = Pipeline(json.loads(json.dumps(plain(steps))), codebase)  # as the file's metadata has them
    for path in files.values():
        tensor, meta = reference(path)
        for image in (path, str(path), cv2.imread(str(path))):
            prepared = ours(image)
            assert prepared.tensor.dtype == tensor.dtype
            np.testing.assert_array_equal(prepared.tensor, tensor)
            assert prepared.tensor.flags.c_contiguous
            assert prepared.scale_factor == meta.get('scale_factor', (1.0, 1.0))
            assert prepared.ori_shape == meta['ori_shape']
            assert prepared.border == tuple(meta.get('border', (0, 0, 0, 0)))
            assert prepared.shape == tensor.shape[1:]


@pytest.mark.parametrize(('codebase', 'steps'), CASES, ids=[f'{base}-{index}' for index, (base, _) in enumerate(CASES)])
def test_the_tensor_and_the_scale_factor_are_the_librarys(codebase, steps, files):
    assert_same(codebase, complete(codebase, steps), files)


@pytest.mark.parametrize('step', [dict(type='Resize', scale=(97, 53)), dict(type='Pad', size_divisor=32, pad_val=114)])
def test_float32_from_the_start(step, files):
    assert_same('mmdet', complete('mmdet', [step], to_float32=True, backend_args=None), files)


def test_classes_instead_of_names(files):
    from mmdet.datasets.transforms import PackDetInputs, Resize

    steps = complete('mmdet', [dict(type=Resize, scale=(64, 96), keep_ratio=True)])
    steps[-1]['type'] = PackDetInputs
    assert_same('mmdet', steps, files)


@pytest.mark.parametrize('color_type', ['color', 'color_ignore_orientation', 'unchanged'])
def test_a_photo_that_says_which_side_is_up(color_type, tmp_path):
    jpeg = cv2.imencode('.jpg', scene(0, 40, 60))[1].tobytes()
    turned = b'Exif\0\0' + b'II*\0\x08\0\0\0' + b'\x01\0' + b'\x12\x01\x03\0\x01\0\0\0\x06\0\0\0' + b'\0\0\0\0'
    path = tmp_path / 'turned.jpg'
    path.write_bytes(jpeg[:2] + b'\xff\xe1' + (len(turned) + 2).to_bytes(2, 'big') + turned + jpeg[2:])
    steps = complete('mmdet', [dict(type='Resize', scale=(30, 20), keep_ratio=True)], color_type=color_type)
    tensor, meta = library('mmdet', steps)(path)
    prepared = Pipeline(steps)(path)
    np.testing.assert_array_equal(prepared.tensor, tensor)
    assert prepared.ori_shape == meta['ori_shape'] == ((60, 40) if color_type == 'color' else (40, 60))


@pytest.mark.parametrize('color_type', ['grayscale', 'grayscale_ignore_orientation'])
def test_one_channel(color_type, files):
    steps = complete('mmseg', [dict(type='Resize', scale=(30, 20), keep_ratio=True)], color_type=color_type)
    steps.insert(2, dict(type='Pad', size_divisor=16, pad_val=3))
    for path in files.values():
        prepared = Pipeline(steps, 'mmseg', channels=1)(path)
        np.testing.assert_array_equal(prepared.tensor, library('mmseg', steps)(path)[0])
        assert len(prepared.tensor) == 1
    assert set(COLOR_TYPES) >= {color_type}
    gray = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    for array in (gray, gray[..., None]):
        np.testing.assert_array_equal(Pipeline(steps, 'mmseg', channels=1)(array).tensor, prepared.tensor)


def test_gray_and_transparent_files_become_bgr(tmp_path):
    image = scene(0, 20, 30)
    for name, pixels in (('gray', image[..., 0]), ('alpha', np.dstack([image, image[..., :1]]))):
        path = tmp_path / f'{name}.png'
        path.write_bytes(cv2.imencode('.png', pixels)[1].tobytes())
        tensor, _ = library('mmdet', complete('mmdet', []))(path)
        np.testing.assert_array_equal(Pipeline(complete('mmdet', []))(path).tensor, tensor)
        assert len(tensor) == 3


def test_sizes_are_rounded_as_mmcv_and_mmdet_round_them():
    import mmcv
    from mmdet.datasets.transforms.transforms import rescale_size

    rng = np.random.default_rng(0)
    differ = 0
    for w, h, *scale in rng.integers(1, 3000, (3000, 4)).tolist():
        rounded, cut = (_fitted((w, h), tuple(scale), rounding) for rounding in (0.5, 0.0))
        assert rounded == mmcv.rescale_size((w, h), tuple(scale))
        assert cut == rescale_size((w, h), tuple(scale))
        differ += rounded != cut
    assert differ > 500
    assert _scaled((3, 5), 0.5) == (2, 3)


def test_the_array_given_is_left_as_it_was():
    image = scene(0, 30, 40)
    before = image.copy()
    steps = complete('mmdet', [dict(type='Pad', size_divisor=32)], to_float32=True)
    for array in (image, image[::-1], image[:, ::2]):
        expected = Pipeline(steps)(np.ascontiguousarray(array)).tensor
        np.testing.assert_array_equal(Pipeline(steps)(array).tensor, expected)
    np.testing.assert_array_equal(image, before)


PACK = dict(type='PackDetInputs')
REFUSED = {
    'RandomCenterCropPad': [LOAD, dict(type='RandomCenterCropPad', crop_size=None, test_mode=True), PACK],
    'MyStep': [LOAD, dict(type='my_project.MyStep', strength=3), PACK],
    'RandomFlip': [LOAD, dict(type='RandomFlip', prob=0.5), PACK],
    'Normalize': [LOAD, dict(type='Normalize', mean=[0], std=[1]), PACK],
    "Resize has backend='pillow'": [LOAD, dict(type='Resize', scale=(4, 4), backend='pillow'), PACK],
    "FixScaleResize has backend='pillow'": [LOAD, dict(type='FixScaleResize', scale=(4, 4), backend='pillow'), PACK],
    "FixShapeResize has backend='pillow'": [
        LOAD,
        dict(type='FixShapeResize', width=4, height=4, keep_ratio=True, backend='pillow'),
        PACK,
    ],
    "ResizeShortestEdge has backend='pillow'": [LOAD, dict(type='ResizeShortestEdge', scale=4, backend='pillow'), PACK],
    'ResizeShortestEdge has resize_type': [LOAD, dict(type='ResizeShortestEdge', scale=4, resize_type='Other'), PACK],
    "LoadImageFromFile has imdecode_backend='pillow'": [dict(LOAD, imdecode_backend='pillow'), PACK],
    "LoadImageFromFile has color_type='hsv'": [dict(LOAD, color_type='hsv'), PACK],
    "Resize has interpolation='cubic'": [LOAD, dict(type='Resize', scale=(4, 4), interpolation='cubic'), PACK],
    "Pad has padding_mode='wrap'": [LOAD, dict(type='Pad', size_divisor=4, padding_mode='wrap'), PACK],
    'Resize cannot be built: .*antialias': [LOAD, dict(type='Resize', scale=(4, 4), antialias=True), PACK],
    'Resize has scale=.*whole pixels': [LOAD, dict(type='Resize', scale=(4.5, 4)), PACK],
    'Resize has scale=.*positive': [LOAD, dict(type='Resize', scale=(4, -1), keep_ratio=True), PACK],
    'Resize has neither': [LOAD, dict(type='Resize'), PACK],
    'Pad has neither': [LOAD, dict(type='Pad'), PACK],
    'LoadMultiChannelImageFromFiles must begin': [dict(type='LoadMultiChannelImageFromFiles'), PACK],
    'Resize must begin': [dict(type='Resize', scale=(4, 4)), PACK],
    'Resize must end': [LOAD, dict(type='Resize', scale=(4, 4))],
    'PackTrackInputs must end': [LOAD, dict(type='PackTrackInputs')],
    'an empty pipeline': [],
}


@pytest.mark.parametrize('words', REFUSED)
def test_what_cannot_be_reproduced_is_refused_by_name(words, files):
    with pytest.raises(UnsupportedError, match=f'cannot reproduce the test pipeline: {words}'):
        check_steps(REFUSED[words])


def test_the_refusal_says_what_to_do():
    with pytest.raises(UnsupportedError, match='deploy.input.runtime_pipeline=False'):
        check_steps([LOAD, dict(type='MyStep'), PACK])


BAD = {
    'is of type list': [[1, 2], [3, 4]],
    'is of type NoneType': None,
    r'is float32 \(4, 5, 3\)': np.zeros((4, 5, 3), np.float32),
    r'is int64 \(4, 5, 3\)': np.zeros((4, 5, 3), np.int64),
    r'is gray, \(4, 5\): .*GRAY2BGR': np.zeros((4, 5), np.uint8),
    r'has an alpha channel, \(4, 5, 4\): .*:3': np.zeros((4, 5, 4), np.uint8),
    r'is \(4, 5, 1\)': np.zeros((4, 5, 1), np.uint8),
    r'is \(3,\)': np.zeros(3, np.uint8),
    r'is \(1, 4, 5, 3\)': np.zeros((1, 4, 5, 3), np.uint8),
    r'is empty: \(0, 5, 3\)': np.zeros((0, 5, 3), np.uint8),
    'is too thin': np.zeros((1, 9000, 3), np.uint8),
}


@pytest.mark.parametrize('words', BAD)
def test_what_is_no_image_is_refused_in_one_line(words):
    pipeline = Pipeline([LOAD, dict(type='Resize', scale=(64, 64), keep_ratio=True), PACK])
    with pytest.raises(ImageError, match=words) as error:
        pipeline(BAD[words])
    assert '\n' not in str(error.value)
    if 'thin' not in words and 'empty' not in words:
        assert 'uint8 BGR array (H, W, 3)' in str(error.value)


def test_files_that_cannot_be_decoded(tmp_path):
    pipeline = Pipeline([LOAD, PACK])
    (tmp_path / 'text.jpg').write_text('not an image')
    (tmp_path / 'nothing.jpg').write_bytes(b'')
    for name, words in {
        'gone.jpg': 'gone.jpg does not exist',
        '': 'is not a file',
        'text.jpg': r'text.jpg is not an image .*\(12 bytes\)',
        'nothing.jpg': r'\(0 bytes\)',
    }.items():
        with pytest.raises(ImageError, match=words):
            pipeline(tmp_path / name)


def test_a_file_of_more_pixels_than_opencv_decodes(tmp_path):
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))

    header = struct.pack('>IIBBBBB', 60000, 60000, 8, 2, 0, 0, 0)
    path = tmp_path / 'huge.png'
    chunks = chunk(b'IHDR', header), chunk(b'IDAT', zlib.compress(b'0')), chunk(b'IEND', b'')
    path.write_bytes(b'\x89PNG\r\n\x1a\n' + b''.join(chunks))
    with pytest.raises(ImageError, match='huge.png cannot be decoded: .*; give a smaller one') as error:
        Pipeline([LOAD, PACK])(path)
    assert '\n' not in str(error.value)


def test_what_opencv_refuses_names_the_step_and_the_size(monkeypatch):
    def refuse(*_, **__):
        raise MemoryError

    monkeypatch.setattr(cv2, 'copyMakeBorder', refuse)
    with pytest.raises(ImageError, match='the image of 4 x 5 pixels cannot pass Pad: out of memory'):
        Pipeline([LOAD, dict(type='Pad', size_divisor=32), PACK])(np.zeros((4, 5, 3), np.uint8))
