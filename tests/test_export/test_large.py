"""Weights in a file of their own: by wish, or because one file does not take them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from mmdeploy_lite import apis
from mmdeploy_lite.export import large
from mmdeploy_lite.runtime import Model

DEMO = Path(__file__).parents[2] / 'demo'
DETECTOR = DEMO / 'configs' / 'detector.py', DEMO / 'detector.pth'
IMAGE = DEMO / 'images' / 'square.jpg'


def deploy(folder: Path, **options) -> apis.DeployResult:
    return apis.deploy(*DETECTOR, IMAGE, work_dir=folder, shape=(224, 224), cfg_options=options)


@pytest.fixture(scope='module')
def plain(tmp_path_factory) -> apis.DeployResult:
    return deploy(tmp_path_factory.mktemp('plain'))


def test_moved_folder_and_another_working_directory(plain, tmp_path, monkeypatch):
    result = deploy(tmp_path / 'made', **{'deploy.external_data': True})
    assert result.equal
    (data,) = (tmp_path / 'made').glob('model.*.data')
    assert data.stat().st_mode == result.path.stat().st_mode
    facts = result.report.file
    assert facts.data == [data.name] and facts.bytes == result.path.stat().st_size + data.stat().st_size
    assert result.path.stat().st_size < plain.path.stat().st_size / 2
    shutil.move(tmp_path / 'made', tmp_path / 'möved folder')
    (tmp_path / 'elsewhere').mkdir()
    monkeypatch.chdir(tmp_path / 'elsewhere')
    path = Path('..', 'möved folder', 'model.onnx')
    onnx.checker.check_model(os.fspath(path), full_check=True)
    for wanted, got in zip(*(vars(Model(file)(IMAGE)).values() for file in (plain.path, path)), strict=True):
        if isinstance(wanted, np.ndarray):
            np.testing.assert_array_equal(got, wanted)


def test_the_next_run_leaves_only_what_is_used(plain, tmp_path):
    stale = tmp_path / 'model.0123456789abcdef.data'
    stale.write_bytes(b'x')
    deploy(tmp_path, **{'deploy.external_data': True})
    (data,) = tmp_path.glob('model.*.data')
    assert data != stale
    again = deploy(tmp_path, **{'deploy.external_data': True})
    assert list(tmp_path.glob('model.*.data')) == [data] and again.equal
    deploy(tmp_path)
    assert list(tmp_path.glob('*.data')) == [] and [path for path in tmp_path.iterdir() if path.name[0] == '.'] == []


def test_a_graph_that_cannot_be_read_keeps_all_data(tmp_path):
    (tmp_path / 'other.onnx').write_bytes(b'no graph')
    data = tmp_path / 'model.0123456789abcdef.data'
    data.write_bytes(b'x')
    large.drop_unused_data(tmp_path)
    assert data.exists()


def test_too_large_for_one_file(plain, tmp_path, monkeypatch):
    """The same steps as above 2 GB, at 100 kB."""
    monkeypatch.setattr(large, 'LIMIT', 100_000)
    result = deploy(tmp_path)
    assert result.equal and len(result.report.file.data) == 1
    session = onnxruntime.InferenceSession(str(result.path))
    assert [item.name for item in session.get_inputs()] == ['image', 'scale_factor']


def test_saving_does_not_change_the_graph(plain, tmp_path):
    model = onnx.load(plain.path)
    before = model.SerializeToString(deterministic=True)
    large.save(model, tmp_path / 'a.onnx', external=True)
    assert model.SerializeToString(deterministic=True) == before
    first = (tmp_path / 'a.onnx').read_bytes()
    large.save(model, tmp_path / 'a.onnx', external=True)
    assert (tmp_path / 'a.onnx').read_bytes() == first
    loaded = onnx.load(tmp_path / 'a.onnx').graph.initializer
    assert [item.raw_data for item in loaded] == [item.raw_data for item in model.graph.initializer]
    assert large.data_files(tmp_path / 'a.onnx') == [tmp_path / large.data_name(model)]
