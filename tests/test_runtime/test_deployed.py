"""The runtime on deployed models, against the library's own inference on the same image files."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch

import mmdeploy_lite.ops  # noqa: F401  mmdet needs it where mmcv has no compiled extension
from mmdeploy_lite import apis
from mmdeploy_lite.check.answers import Detections, SegEvidence, SegMap
from mmdeploy_lite.check.compare import compare_detections, compare_seg_map
from mmdeploy_lite.check.runtime_check import check_pipeline, check_runtime
from mmdeploy_lite.errors import ImageError, UnsupportedError
from mmdeploy_lite.export.attempt import Exporting
from mmdeploy_lite.export.describe import describe
from mmdeploy_lite.loading import use_scope
from mmdeploy_lite.runtime import Model, read_metadata, seal
from mmdeploy_lite.tasks.segmentation import undecided_pixels


def metadata_of(path: Path) -> dict:
    return read_metadata({entry.key: entry.value for entry in onnx.load(path).metadata_props})


def library_answer(task, path: Path):
    """What ``inference_detector`` and ``inference_model`` do: the whole pipeline from the file on, ``test_step``."""
    from mmengine.dataset import Compose

    use_scope(task.codebase)
    data = Compose(task.pipeline.steps)(dict(img_path=str(path), img_id=0))
    with torch.no_grad():
        return task.model.test_step(dict(inputs=[data['inputs']], data_samples=[data['data_samples']]))[0]


def test_a_detector_answers_files_as_the_library_does(detector):
    model = Model(detector.result.path, threads=1)
    for path in detector.images:
        expected = library_answer(detector.result.task, path).pred_instances
        reference = Detections(*(getattr(expected, name).numpy() for name in ('bboxes', 'scores', 'labels')))
        got = model(path)
        comparison = compare_detections(
            reference, Detections(got.bboxes, got.scores, got.labels), got.shape, num_classes=len(model.classes)
        )
        assert comparison.equal, comparison.reasons
        assert len(reference) > 20 and got.names == [model.classes[label] for label in got.labels]


def test_a_segmentor_answers_files_as_the_library_does(segmentor):
    model = Model(segmentor.result.path, threads=1)
    for path in (segmentor.images[0], segmentor.images[2]):
        expected = library_answer(segmentor.result.task, path)
        got = model(path)
        undecided = undecided_pixels(expected.seg_logits.data, 0.5, 1e-4)
        reference = expected.pred_sem_seg.data[0].long().numpy()
        comparison = compare_seg_map(SegMap(reference), SegMap(got.seg_map), evidence=SegEvidence(undecided))
        assert comparison.equal, comparison.reasons
        assert len(got.areas) > 1


def test_masks_are_those_that_were_checked(mask_rcnn):
    assert mask_rcnn.result.equal
    rows = [check for check in mask_rcnn.result.report.checks if check.output == 'runtime']
    assert len(rows) == len(mask_rcnn.images)
    model = Model(mask_rcnn.result.path, threads=1)
    for row, path in zip(rows, mask_rcnn.images, strict=True):
        assert row.comparison.has_masks and not row.comparison.excused_pixels
        expected = library_answer(mask_rcnn.result.task, path).pred_instances
        got = model(path)
        assert got.masks.shape == (len(expected.scores), *apis.check_image(path).shape[:2]) and len(got) > 5
        # pixels of which PyTorch itself is not sure were compared with evidence when the file was made
        assert abs(got.masks.sum() - int(expected.masks.sum())) < 0.01 * got.masks.sum()


def test_a_slide_file_says_which_size_it_takes(segmentor):
    with pytest.raises(ImageError, match=r'141 x 98 pixels .* as 96 x 67, the file takes only 62 x 96 .*slide'):
        Model(segmentor.result.path)(segmentor.images[1])


def test_eight_threads_on_one_model(detector):
    model = Model(detector.result.path, threads=1)
    expected = model(detector.images)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(model, detector.images * 8))
    for index, result in enumerate(results):
        for name in ('bboxes', 'scores', 'labels'):
            np.testing.assert_array_equal(getattr(result, name), getattr(expected[index % 3], name))


def test_the_report_has_the_runtimes_answers(detector, segmentor):
    report = json.loads((detector.result.path.parent / 'report.json').read_text(encoding='utf-8'))
    rows = [check for check in report['checks'] if check['output'] == 'runtime']
    assert [row['image'] for row in rows] == [path.name for path in detector.images]
    assert all(row['verdict'] == 'equal' and row['worst_box_diff'] == 0 for row in rows)
    assert report['equal'] and 'runtime' in report['stage_times']
    counted = sum(check['counts']['matched'] for check in report['checks'] if check['output'] == 'dets')
    assert f'{counted} detections' in report['summary']

    report = json.loads((segmentor.result.path.parent / 'report.json').read_text(encoding='utf-8'))
    rows = [check for check in report['checks'] if check['output'] == 'runtime']
    assert [row['image'] for row in rows] == ['0.png', '2.png']
    assert 'the runtime on 1.png: the pipeline makes 96 x 67 of it' in report['not_exercised']


def test_the_metadata_of_a_detector(detector):
    metadata = metadata_of(detector.result.path)
    assert metadata['version'] == 1
    assert metadata['task'] == 'detection' and metadata['codebase'] == 'mmdet'
    assert metadata['classes'] == ['disc', 'square', 'triangle', 'ring', 'star', 'cross']
    assert len(metadata['palette']) == 6 and all(len(color) == 3 for color in metadata['palette'])
    assert [step['type'] for step in metadata['pipeline']] == ['LoadImageFromFile', 'Resize', 'Pad', 'PackDetInputs']
    assert metadata['inputs'] == ['image', 'scale_factor']
    assert metadata['outputs'] == {'dets': [1, 'num_dets', 5], 'labels': [1, 'num_dets'], 'num_dets': [1]}
    assert metadata['rescale'] is True and metadata['dtype'] == 'float32'
    assert metadata['shapes'] == {'dynamic': True}
    assert metadata['test_cfg']['score_thr'] == 0.05
    assert set(metadata['preprocess']) == {'swap_channels', 'mean', 'std', 'pad_value', 'divisor', 'size'}
    assert {'mmdeploy_lite', 'torch', 'mmdet'} <= set(metadata['versions'])
    assert len(metadata['config_sha256']) == len(metadata['checkpoint_sha256']) == 64


def test_the_metadata_of_a_segmentor(segmentor):
    metadata = metadata_of(segmentor.result.path)
    assert metadata['task'] == 'segmentation' and metadata['codebase'] == 'mmseg'
    assert metadata['classes'][:3] == ['sky', 'ground', 'disc'] and len(metadata['classes']) == 8
    assert metadata['inputs'] == ['image', 'ori_shape'] and metadata['dtype'] == 'uint8'
    assert metadata['outputs'] == {'seg_map': [1, 'map_height', 'map_width']}
    shapes = metadata['shapes']
    assert (shapes['height'], shapes['width'], shapes['dynamic']) == (62, 96, False) and 'slide' in shapes['reason']
    assert metadata['test_cfg'] == {'mode': 'slide', 'crop_size': [64, 64], 'stride': [48, 48]}


def test_every_name_of_the_metadata_is_in_the_document(detector, segmentor):
    page = Path(__file__).resolve().parents[2].joinpath('docs', 'file.md').read_text(encoding='utf-8')
    for deployed in (detector, segmentor):
        metadata = metadata_of(deployed.result.path)
        for name in [*metadata, *metadata['inputs'], *metadata['outputs'], *metadata['preprocess']]:
            assert f'`{name}`' in page, name


def tampered(path: Path, folder: Path, **metadata) -> Path:
    model = onnx.load(path)
    entry = model.metadata_props[0]
    entry.value = json.dumps({**json.loads(entry.value), **metadata})
    onnx.save(model, folder / 'tampered.onnx')
    seal(folder / 'tampered.onnx')
    return folder / 'tampered.onnx'


def change(steps: list[dict], index: int, **arguments) -> list[dict]:
    return [dict(step, **arguments) if index == place else step for place, step in enumerate(steps)]


@pytest.mark.parametrize(
    ('index', 'arguments'),
    [
        (1, dict(interpolation='nearest')),
        (1, dict(type='FixScaleResize')),
        (1, dict(scale=[126, 126])),
        (2, dict(pad_val=0)),
    ],
)
def test_a_runtime_that_prepares_images_differently_is_caught(detector, tmp_path, index, arguments):
    task, images = detector.result.task, detector.images[1:2]
    steps = metadata_of(detector.result.path)['pipeline']
    path = tampered(detector.result.path, tmp_path, pipeline=change(steps, index, **arguments))
    samples = [task.prepare(images[0].name, apis.check_image(images[0]))]
    [check], _ = check_runtime(detector.result.path, task, samples, images)
    assert check.comparison.equal
    [check], skipped = check_runtime(path, task, samples, images)
    assert check.comparison.verdict == 'unequal' and check.output == 'runtime' and not skipped


def test_a_runtime_that_cannot_load_the_file_is_unequal(detector, tmp_path):
    task, images = detector.result.task, detector.images[:1]
    path = tampered(detector.result.path, tmp_path, pipeline=None)
    samples = [task.prepare(images[0].name, apis.check_image(images[0]))]
    [check], _ = check_runtime(path, task, samples, images)
    assert check.comparison.verdict == 'unequal' and 'runtime_pipeline=False' in check.comparison.reasons[0]


class Reached(Exception):
    """The export began."""


RESIZE = dict(type='Resize', scale=(128, 128), keep_ratio=True)
NORMALIZE = dict(type='Normalize', mean=[0, 0, 0], std=[1, 1, 1], to_rgb=True)


@pytest.mark.parametrize(
    ('steps', 'words'),
    [
        ([RESIZE, NORMALIZE], 'Normalize is not one of'),
        ([dict(RESIZE, backend='pillow')], "Resize has backend='pillow'"),
    ],
)
def test_what_the_runtime_cannot_do_is_refused_before_the_export(detector, monkeypatch, steps, words, tmp_path):
    def reached(*_):
        raise Reached

    monkeypatch.setattr(Exporting, 'run', reached)
    load = dict(type='LoadImageFromFile')
    pack = dict(type='PackDetInputs', meta_keys=('ori_shape', 'img_shape', 'scale_factor'))
    folder = detector.images[0].parent
    base, pipeline = str(folder / 'config.py'), [load, *steps, pack]
    config = tmp_path / 'other.py'
    config.write_text(f'_base_ = {base!r}\ntest_dataloader = dict(dataset=dict(pipeline={pipeline!r}))\n')
    arguments = (config, folder / 'weights.pth', detector.images[0])
    with pytest.raises(UnsupportedError, match=words):
        apis.deploy(*arguments, work_dir=tmp_path)
    assert not list(tmp_path.glob('*.onnx'))
    with pytest.raises(Reached):
        apis.deploy(*arguments, work_dir=tmp_path, cfg_options={'deploy.input.runtime_pipeline': False})


def test_a_file_without_pipeline_says_so(detector):
    task = detector.result.task
    loaded = SimpleNamespace(dataset_meta={}, cfg=SimpleNamespace(to_dict=dict), checkpoint_sha256=None)
    sample = task.prepare('x', apis.check_image(detector.images[0]))
    assert describe(task, loaded, sample, None, runtime_pipeline=False)['pipeline'] is None
    assert describe(task, loaded, sample, None)['pipeline'][0]['type'] == 'LoadImageFromFile'


def test_a_step_of_another_package_under_a_librarys_name(detector):
    class Pad:
        pass

    pipeline = detector.result.task.pipeline
    steps = SimpleNamespace(steps=pipeline.steps, transforms=[*pipeline.transforms[:2], Pad(), pipeline.transforms[3]])
    check_pipeline(detector.result.task)
    with pytest.raises(UnsupportedError, match="Pad is .*test_deployed.Pad, not the library's own"):
        check_pipeline(SimpleNamespace(pipeline=steps, codebase='mmdet'))


def test_a_list_is_one_run_where_any_batch_is_taken(detector, tmp_path, monkeypatch):
    """The images of a list that come out in one size go through the file together."""
    demo = Path(__file__).resolve().parents[2] / 'demo'
    config, checkpoint = demo / 'configs' / 'detector.py', demo / 'detector.pth'
    images = [demo / 'images' / f'{name}.jpg' for name in ('landscape', 'empty')]
    options = {'deploy.input.batch_size': None}
    result = apis.deploy(config, checkpoint, images, work_dir=tmp_path, cfg_options=options)
    assert result.equal
    model = Model(result.path, threads=1)
    assert model.session.input_shapes['image'] == ['batch', 3, 'height', 'width']
    assert metadata_of(result.path)['outputs']['dets'] == ['batch', 'num_dets', 5]
    alone = [model(image) for image in images]
    runs, run = [], model.session.run
    monkeypatch.setattr(model.session, 'run', lambda feeds: runs.append(len(feeds['image'])) or run(feeds))
    answers = model([images[0], images[0], images[1], *[images[1]] * 9])
    assert runs == [8, 4]  # the demo's pipeline pads every image to one size
    for answer, wanted in zip(answers, [alone[0], alone[0], *[alone[1]] * 10], strict=True):
        np.testing.assert_array_equal(answer.bboxes, wanted.bboxes)
        np.testing.assert_array_equal(answer.scores, wanted.scores)


def test_masks_over_boxes_are_pasted_by_the_runtime(mask_rcnn, tmp_path):
    folder = mask_rcnn.images[0].parent
    result = apis.deploy(
        folder / 'config.py',
        folder / 'weights.pth',
        mask_rcnn.images,
        work_dir=tmp_path,
        cfg_options={'deploy.outputs': 'roi_masks'},
    )
    rows = [check for check in result.report.checks if check.output == 'runtime']
    assert result.equal and len(rows) == len(mask_rcnn.images) and all(row.comparison.has_masks for row in rows)
    whole, parts = Model(mask_rcnn.result.path, threads=1), Model(result.path, threads=1)
    assert 'roi_masks' in parts.session.output_names and 'ori_shape' not in parts.session.input_names
    for path in mask_rcnn.images:
        wanted, got = whole(path), parts(path)
        np.testing.assert_array_equal(got.labels, wanted.labels)
        assert got.masks.shape == wanted.masks.shape and got.masks.any()
        assert (got.masks != wanted.masks).mean() < 1e-4
