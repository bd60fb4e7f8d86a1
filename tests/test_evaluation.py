"""mAP and mIoU of a file beside PyTorch's, on the demo's own data set and metrics."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from mmdeploy_lite import apis, cli
from mmdeploy_lite.runtime import seal

DEMO = Path(__file__).parents[1] / 'demo'
SCENES = 12


@pytest.fixture(scope='module')
def data(tmp_path_factory) -> Path:
    """The first scenes of the demo's validation set."""
    spec = importlib.util.spec_from_file_location('make_dataset', DEMO / 'make_dataset.py')
    module = importlib.util.module_from_spec(spec)
    sys.modules['make_dataset'] = module
    spec.loader.exec_module(module)
    folder = tmp_path_factory.mktemp('data')
    module.write_split(folder, 'val', SCENES, seed=0)
    return folder


@pytest.fixture(scope='module')
def files(tmp_path_factory) -> dict[str, Path]:
    """The demo's models, deployed."""
    folder = tmp_path_factory.mktemp('files')
    image = DEMO / 'images' / 'landscape.jpg'
    made = {}
    for name, shape in (('detector', None), ('segmentor', (256, 320))):
        result = apis.deploy(*model(name), image, shape=shape, work_dir=folder / name)
        assert result.equal
        made[name] = result.path
    return made


def model(name: str) -> tuple[Path, Path]:
    return DEMO / 'configs' / f'{name}.py', DEMO / f'{name}.pth'


def options(data: Path) -> list[str]:
    return [
        '--cfg-options',
        f'test_dataloader.dataset.data_root={data}/',
        f'test_evaluator.ann_file={data}/val/instances.json',
    ]


def evaluate(name: str, file: Path, data: Path, folder: Path, *more: str) -> int:
    given = options(data)[: 2 if name == 'segmentor' else 3]
    return cli.main(['test', *map(str, model(name)), str(file), '--work-dir', str(folder), *given, *more])


@pytest.mark.parametrize('name', ['detector', 'segmentor'])
def test_both_have_the_same_metrics(name, files, data, tmp_path, capsys):
    assert evaluate(name, files[name], data, tmp_path) == 0
    out = capsys.readouterr().out
    assert f'{SCENES} images' in out and 'equal to four digits' in out and 'Average Precision' not in out
    found = json.loads((tmp_path / 'evaluation.json').read_text())
    metric, least = dict(detector=('coco/bbox_mAP', 0.2), segmentor=('mIoU', 30))[name]
    assert found['equal'] and found['pytorch'] == found['file'] and found['file'][metric] > least
    assert found['shape'] == (None if name == 'detector' else [256, 320]) and found['warnings'] == []


def test_a_worse_file_is_exit_1(files, data, tmp_path, capsys):
    graph = onnx.load(files['detector'])
    for item in graph.graph.initializer:
        values = numpy_helper.to_array(item)
        if values.ndim == 4:
            noise = np.random.default_rng(0).normal(0, 0.1 * values.std(), values.shape)
            item.CopyFrom(numpy_helper.from_array((values + noise).astype(values.dtype), item.name))
    onnx.save(graph, tmp_path / 'worse.onnx')
    seal(tmp_path / 'worse.onnx')
    assert evaluate('detector', tmp_path / 'worse.onnx', data, tmp_path) == 1
    assert 'not equal: coco/bbox_mAP' in capsys.readouterr().out
    found = json.loads((tmp_path / 'evaluation.json').read_text())
    assert not found['equal'] and found['pytorch'] != found['file']


def test_the_file_alone(files, data, tmp_path, capsys):
    assert evaluate('segmentor', files['segmentor'], data, tmp_path, '--file-only') == 0
    assert 'PyTorch' not in capsys.readouterr().out
    assert json.loads((tmp_path / 'evaluation.json').read_text())['pytorch'] == {}


def test_what_does_not_belong_together(files, data, tmp_path, capsys):
    assert evaluate('segmentor', files['detector'], data, tmp_path) == 2
    assert 'the file is for detection, the config for segmentation' in capsys.readouterr().err
    assert evaluate('detector', files['detector'], tmp_path / 'nowhere', tmp_path) == 2
    assert 'the test dataset of the config is not there' in capsys.readouterr().err
    config = tmp_path / 'config.py'
    config.write_text(f"_base_ = '{model('detector')[0]}'\ntest_evaluator = None\n")
    assert cli.main(['test', str(config), str(model('detector')[1]), str(files['detector'])]) == 2
    assert 'no test_evaluator' in capsys.readouterr().err


def test_another_checkpoint_is_said(files, data, tmp_path, capsys):
    graph = onnx.load(files['segmentor'])
    entry = graph.metadata_props[0]
    metadata = json.loads(entry.value)
    metadata['checkpoint_sha256'] = 'x'
    entry.value = json.dumps(metadata)
    onnx.save(graph, tmp_path / 'other.onnx')
    seal(tmp_path / 'other.onnx')
    assert evaluate('segmentor', tmp_path / 'other.onnx', data, tmp_path, '--file-only') == 0
    assert 'was not made from' in ' '.join(capsys.readouterr().out.split())


def test_answers_in_other_pixels_cannot_be_measured(files, data, tmp_path, capsys):
    graph = onnx.load(files['detector'])
    entry = graph.metadata_props[0]
    entry.value = json.dumps({**json.loads(entry.value), 'rescale': False})
    onnx.save(graph, tmp_path / 'pixels.onnx')
    seal(tmp_path / 'pixels.onnx')
    assert evaluate('detector', tmp_path / 'pixels.onnx', data, tmp_path) == 2
    assert 'rescale=False' in capsys.readouterr().err
