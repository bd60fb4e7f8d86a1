"""``deploy`` with a second, less exact file: its names, exit codes and words."""

from __future__ import annotations

import json

import cv2
import numpy as np
import onnx
import pytest

from mmdeploy_lite.runtime import Model
from mmdeploy_lite.runtime.seal import check_seal
from mmdeploy_lite.runtime.session import read_metadata
from mmdeploy_lite.testing.images import scene

from .conftest import PREVIOUS, SCALE, files, run


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    """A folder to calibrate on."""
    folder = tmp_path_factory.mktemp('images')
    for seed in range(3):
        cv2.imwrite(str(folder / f'{seed}.png'), scene(seed + 5, SCALE[1], SCALE[0]))
    return folder


def report(folder) -> dict:
    return json.loads((folder / 'report.json').read_text())


def test_fp16_measured_on_the_dataset(inputs, dataset, work_dir, capsys):
    options = [*dataset, 'deploy.precision=fp16', 'deploy.backend.threads=1']
    (work_dir / 'model.fp16.refused.onnx').write_bytes(PREVIOUS)
    assert run(work_dir, *inputs.segmentor, inputs.image, '--cfg-options', *options) == 0
    found = report(work_dir)['precision']
    assert found['accepted'] and found['type'] == 'fp16' and found['images'] == 3 and found['not_measured'] == ''
    assert found['before']['mIoU'] == pytest.approx(100, abs=0.1) and 98 < found['after']['mIoU'] <= 100
    assert found['loss'] == pytest.approx((found['before']['mIoU'] - found['after']['mIoU']) / 100, abs=1e-5)
    assert found['file']['bytes'] < 0.75 * found['exact_bytes']
    left = set(files(work_dir))
    assert left == {'model.onnx', 'model.fp16.onnx', 'report.json', 'compare_scene.png'}
    metadata, exact = (read_metadata(check_seal(work_dir / name)) for name in ('model.fp16.onnx', 'model.onnx'))
    assert metadata.pop('precision')['type'] == 'fp16' and metadata == exact
    out = ' '.join(capsys.readouterr().out.split())
    assert 'fp16 accepted: mIoU' in out and 'on 3 images' in out and 'model.fp16.onnx' in out


def test_a_loss_above_the_limit_is_refused(inputs, dataset, images, work_dir, capsys):
    (work_dir / 'model.int8.onnx').write_bytes(PREVIOUS)
    options = ['type=int8', f'calibration={images}', 'max_loss=0', 'keep_last=False']
    options = [*dataset, *(f'deploy.precision.{option}' for option in options)]
    assert run(work_dir, *inputs.segmentor, inputs.image, '--cfg-options', *options) == 1
    found = report(work_dir)
    assert found['equal'] and not found['precision']['accepted'] and found['precision']['loss'] > 0
    # the exact file is there; an accepted one of an earlier run is as it was
    assert (work_dir / 'model.int8.onnx').read_bytes() == PREVIOUS
    assert onnx.load(work_dir / 'model.onnx').graph.node
    Model(work_dir / 'model.int8.refused.onnx')
    out = ' '.join(capsys.readouterr().out.split())
    assert 'int8 refused: mIoU' in out and '(limit 0)' in out and 'model.int8.refused.onnx' in out


def test_without_a_dataset_only_agreement_is_known(inputs, images, work_dir, tmp_path, capsys):
    config = tmp_path / 'int8.py'
    config.write_text(
        "_base_ = 'mmdeploy_lite::mmdet/detection_int8.py'\n"
        f"deploy = dict(precision=dict(calibration='{images}', num_images=2, min_agreement=0.0))\n"
    )
    arguments = [*inputs.detector, inputs.image, inputs.other, '--deploy-cfg', config]
    assert run(work_dir, *arguments, '--cfg-options', 'deploy.backend.threads=1') == 0
    found = report(work_dir)['precision']
    assert found['before'] == {} and 'the test dataset of the config is not there' in found['not_measured']
    assert [item['image'] for item in found['agreement']] == ['scene.png', 'other.jpg']
    assert found['details']['calibration_images'] == 2 and 0 < found['share'] <= 1
    out = ' '.join(capsys.readouterr().out.split())
    assert 'mAP or mIoU was not measured: the test dataset' in out and 'int8 accepted:' in out


def test_agreement_below_its_limit_is_refused(inputs, work_dir, monkeypatch, capsys):
    from mmdeploy_lite.precision import FP16

    monkeypatch.setattr(FP16, 'convert', spoiled)
    options = ['deploy.precision=fp16', 'deploy.precision.metrics=False', 'deploy.backend.threads=1']
    assert run(work_dir, *inputs.segmentor, inputs.image, '--cfg-options', *options) == 1
    found = report(work_dir)['precision']
    assert found['not_measured'] == 'deploy.precision.metrics=False' and found['share'] < 0.9
    assert 'fp16 refused:' in capsys.readouterr().out and (work_dir / 'model.fp16.refused.onnx').exists()


def spoiled(self, model, *_):
    """A conversion that loses the last layer's weights."""
    (last,) = [item for item in model.graph.node if item.output[0] == '/conv_seg/Conv_output_0']
    for item in model.graph.initializer:
        if item.name == last.input[1]:
            item.raw_data = np.zeros(len(item.raw_data) // 4, np.float32).tobytes()
    return model, {}


@pytest.mark.parametrize(
    'option, message',
    [
        ('deploy.precision=fp8', "'fp8' is not in the precision registry; known are fp16, int8"),
        ('deploy.precision=int8', 'deploy.precision.calibration=FOLDER'),
        ('deploy.precision.max_loss=0.1', "'None' is not in the precision registry"),
        ('deploy.precision=[1]', 'deploy.precision is [1]; it must be a name, a dict or None'),
    ],
)
def test_bad_options_are_known_before_the_export(inputs, refused, option, message):
    assert message in refused(*inputs.segmentor, inputs.image, '--cfg-options', option)


def test_not_made_of_a_file_that_is_not_equal(inputs, work_dir, monkeypatch, capsys):
    from mmdeploy_lite.rewriters.mmseg_segmentors import Resize

    plain = Resize.__call__
    monkeypatch.setattr(
        Resize,
        '__call__',
        lambda self, origin, input, *args, **kwargs: plain(self, origin, input.roll(1, -1), *args, **kwargs),
    )
    assert run(work_dir, *inputs.segmentor, inputs.image, '--cfg-options', 'deploy.precision=fp16') == 1
    found = report(work_dir)
    assert found['precision'] is None and not list(work_dir.glob('model.fp16*'))
    assert found['warnings'] == ['fp16 was not made: the float32 file it would be made of is not equal']
