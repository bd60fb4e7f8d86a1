"""What goes into a file and what is made of its answer, on files of a few nodes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest

from mmdeploy_lite.errors import BackendError, ImageError
from mmdeploy_lite.runtime import Detections, Model, PanopticMap, SegMap
from mmdeploy_lite.testing.images import scene

BOXES = np.array([[4, 6, 20, 24], [0, 0, 9, 9], [8, 3, 12, 30], [1, 1, 2, 2]], np.float32)
TO_40_30 = [dict(type='LoadImageFromFile'), dict(type='Resize', scale=[40, 30]), dict(type='PackDetInputs')]


def gray(value: int, height: int = 60, width: int = 50) -> np.ndarray:
    """An image of one value: a file of a few nodes sees as many objects in it, at most 4, of that score."""
    return np.full((height, width, 3), value, np.uint8)


def same(one: Detections, other: Detections) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in ('bboxes', 'scores', 'labels', 'masks')
    )


def test_detections(make_file):
    result = Model(make_file())(gray(3))
    assert isinstance(result, Detections) and len(result) == 3
    # 60 x 50 fits into 40 x 30 as 36 x 30
    np.testing.assert_allclose(result.bboxes, BOXES[:3] / np.float32([30 / 50, 36 / 60] * 2), rtol=1e-6)
    np.testing.assert_allclose(result.scores, np.float32([1, 0.5, 0.25]) * 3 / 255, rtol=1e-6)
    assert result.labels.tolist() == [3, 1, 2] and result.names == ['four', 'zwei', 'три']
    assert result.masks is None and result.shape == (60, 50)
    assert (result.bboxes.dtype, result.scores.dtype, result.labels.dtype) == (np.float32, np.float32, np.int64)
    assert result.bboxes.shape == (3, 4)


def test_no_detections(make_file):
    result = Model(make_file(task='instance_segmentation'))(gray(0))
    assert len(result) == 0 and result.names == []
    assert result.bboxes.shape == (0, 4) and result.masks.shape == (0, 60, 50)


def test_masks_are_of_the_original_size(make_file):
    result = Model(make_file(task='instance_segmentation'))(gray(4, 61, 50))
    assert result.masks.dtype == bool and result.masks.shape == (4, 61, 50)


def test_a_panoptic_map(make_file):
    result = Model(make_file(task='panoptic'))(gray(2, 61, 50))
    assert isinstance(result, PanopticMap) and result.shape == (61, 50)
    assert (result.seg_map == 2).all() and (result.numbers == 2).all() and result.numbers.shape == (61, 50)
    assert result.segments == [('три', 2, 61 * 50)] and result.areas == {'три': 61 * 50}


def test_a_map(make_file):
    pipeline = [*TO_40_30[:2], dict(type='PackSegInputs')]
    result = Model(make_file(task='segmentation', pipeline=pipeline))(gray(2, 61, 50))
    assert isinstance(result, SegMap)
    assert result.seg_map.dtype == np.int64 and result.seg_map.shape == result.shape == (61, 50)
    assert (result.seg_map == 2).all() and result.areas == {'три': 61 * 50}


def test_without_rescale_answers_are_in_the_pixels_of_the_pipelines_image(make_file):
    model = Model(make_file(task='instance_segmentation', rescale=False, pipeline=TO_40_30))
    assert model.session.input_names == ['image'] and not model.rescale
    result = model(gray(4))
    np.testing.assert_array_equal(result.bboxes, BOXES)
    assert result.shape == (30, 40) and result.masks.shape == (4, 30, 40)


def test_two_factors(make_file):
    result = Model(make_file(pipeline=TO_40_30))(gray(4, 60, 50))
    np.testing.assert_allclose(result.bboxes, BOXES / np.float32([40 / 50, 30 / 60] * 2), rtol=1e-6)


@pytest.mark.parametrize('dtype', ['float32', 'uint8'])
def test_the_files_dtype(make_file, dtype):
    result = Model(make_file(dtype=dtype))(gray(200))
    assert result.scores[0] == pytest.approx(200 / 255, rel=1e-6)


def test_a_class_without_a_name(make_file):
    assert Model(make_file(classes=['one'], palette=[]))(gray(2)).names == ['class_3', 'class_1']


def test_a_list_keeps_its_order(make_file):
    model = Model(make_file())
    images = [gray(1), gray(3, 20, 90), gray(2), gray(0)]
    results = model(images)
    assert [len(result) for result in results] == [1, 3, 2, 0]
    assert all(same(result, model(image)) for result, image in zip(results, images, strict=True))
    assert model([]) == [] and [len(result) for result in model((gray(4),))] == [4]


@pytest.mark.parametrize('task', ['detection', 'instance_segmentation'])
def test_a_fixed_batch_is_filled_and_not_mixed(make_file, task, monkeypatch):
    model = Model(make_file(task=task, batch=3, name='batch.onnx'))
    single = Model(make_file(task=task))
    batches = []
    run = model.session.run

    def count(feeds):
        batches.append(feeds['image'].mean(axis=(1, 2, 3)).tolist())
        return run(feeds)

    monkeypatch.setattr(model.session, 'run', count)
    images = [gray(1), gray(2), gray(3), gray(4), gray(5, 50, 60), gray(6, 51, 60), gray(7, 51, 60)]
    results = model(images)
    assert [len(result) for result in results] == [1, 2, 3, 4, 4, 4, 4]
    assert all(same(result, single(image)) for result, image in zip(results, images, strict=True))
    # three of one size; one alone, filled up; one of another size; two that become the same size and were not
    assert batches == [[1, 2, 3], [4, 4, 4], [5, 5, 5], [6, 7, 6]]


def test_images_of_one_size_that_were_of_different_sizes_do_not_share_a_run(make_file):
    pipeline = [*TO_40_30[:2], dict(type='PackSegInputs')]
    model = Model(make_file(task='segmentation', batch=2, pipeline=pipeline))
    results = model([gray(1, 60, 50), gray(2, 30, 20)])
    assert [result.seg_map.shape for result in results] == [(60, 50), (30, 20)]
    assert [result.seg_map[0, 0] for result in results] == [1, 2]


def test_a_dynamic_batch(make_file):
    results = Model(make_file(batch='batch'))([gray(1), gray(2)])
    assert [len(result) for result in results] == [1, 2]


def test_an_image_of_a_size_that_a_fixed_file_does_not_take(make_file):
    model = Model(make_file(size=(36, 30), shapes=dict(dynamic=False, reason='the size is fixed: because')))
    assert len(model(gray(2, 60, 50))) == 2
    words = 'of 50 x 60 pixels comes out of the pipeline as 30 x 36, the file takes only 36 x 30 .*because.*--shape'
    with pytest.raises(ImageError, match=f'the image {words}'):
        model(gray(2, 50, 60))


@pytest.mark.parametrize(('channels', 'words'), [(1, r'\(H, W, 1\)'), (4, r'\(H, W, 4\)')])
def test_a_file_of_other_channels(make_file, channels, words):
    model = Model(make_file(channels=channels))
    with pytest.raises(ImageError, match=words):
        model(gray(2))
    assert len(model(gray(2)[..., [0] * channels])) == 2


def test_eight_threads_get_the_answers_of_one(make_file):
    model = Model(make_file(task='instance_segmentation'), threads=1)
    images = [scene(seed, 30 + seed, 60 - seed) | np.uint8(seed % 5) for seed in range(16)]
    expected = [model(image) for image in images]
    assert len({len(result) for result in expected}) > 1
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(model, images * 8))
    assert all(same(result, expected[index % 16]) for index, result in enumerate(results))


def test_nothing_in_a_model_changes_when_it_runs(make_file):
    model = Model(make_file())

    def state():
        return {**vars(model), **vars(model.pipeline), **vars(model.session)}

    before = {name: (id(value), repr(value)) for name, value in state().items()}
    model([gray(1), gray(2, 20, 30)])
    assert {name: (id(value), repr(value)) for name, value in state().items()} == before


def error_of(path, **options) -> str:
    with pytest.raises(BackendError) as error:
        Model(path, **options)
    assert '\n' not in str(error.value)
    return str(error.value)


def test_files_that_are_not_there_or_not_onnx(make_file, tmp_path):
    assert 'there is no file' in error_of(tmp_path / 'gone.onnx')
    assert 'there is no file' in error_of(tmp_path)
    (tmp_path / 'text.onnx').write_text('hello')
    (tmp_path / 'nothing.onnx').write_bytes(b'')
    whole = make_file().read_bytes()
    for name, size in (('half', len(whole) // 2), ('nearly', len(whole) - 9), ('start', 10)):
        (tmp_path / f'{name}.onnx').write_bytes(whole[:size])
    for name in ('text', 'nothing', 'half', 'nearly', 'start'):
        path = tmp_path / f'{name}.onnx'
        assert str(path) in error_of(path)


def test_files_of_others(make_file, tmp_path):
    path = make_file()
    model = onnx.load(path)
    del model.metadata_props[:]
    onnx.save(model, path)
    assert f'{path}: ' in error_of(path) and 'was not exported by mmdeploy_lite' in error_of(path)
    for text, words in (
        ('[1]', 'cannot be read'),
        ('{"version": 99}', 'update mmdeploy_lite'),
        ('{"version": 1}', 'not complete'),
    ):
        model.metadata_props.add(key='mmdeploy_lite').value = text
        onnx.save(model, path)
        assert words in error_of(path)
        del model.metadata_props[:]


@pytest.mark.parametrize('key', ['task', 'classes', 'palette', 'rescale', 'dtype', 'pipeline', 'codebase'])
def test_metadata_that_lacks_something(make_file, key):
    assert f"not complete: '{key}'" in error_of(make_file(without=(key,)))


def test_a_file_without_pipeline(make_file):
    message = error_of(make_file(pipeline=None))
    assert 'runtime_pipeline=False' in message and 'FileSession' in message


def test_a_file_for_another_program(make_file):
    path = make_file()
    model = onnx.load(path)
    del model.graph.output[1]
    onnx.save(model, path)
    assert 'answers dets, num_dets' in error_of(path)
    model = onnx.load(make_file())
    model.graph.input.add().CopyFrom(onnx.helper.make_tensor_value_info('prompt', onnx.TensorProto.FLOAT, [1]))
    onnx.save(model, path)
    assert 'takes prompt' in error_of(path)


def test_providers_and_threads(make_file):
    assert 'has no TPUExecutionProvider' in error_of(make_file(), providers=['TPUExecutionProvider'])
    assert '0 threads' in error_of(make_file(), threads=0)
    assert len(Model(make_file(), providers=['CPUExecutionProvider'], threads=1)(gray(2))) == 2
