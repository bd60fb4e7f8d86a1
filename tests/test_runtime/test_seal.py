"""A file is run as it was written, or refused before anything else reads it."""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mmdeploy_lite.errors import BackendError
from mmdeploy_lite.runtime import FileSession, seal
from mmdeploy_lite.runtime.seal import DATA_KEY, SEAL_KEY, check_seal
from mmdeploy_lite.workdir import save_model


def model() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weight = onnx.numpy_helper.from_array(rng.normal(size=(64, 64)).astype(np.float32), 'weight')
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ['n', 64]) for name in ('image', 'out')]
    node = helper.make_node('MatMul', ['image', 'weight'], ['out'])
    graph = helper.make_graph([node], 'graph', values[:1], values[1:], [weight])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)
    entry = made.metadata_props.add()
    entry.key, entry.value = 'mmdeploy_lite', json.dumps(dict(version=1, sealed=True))
    return made


@pytest.fixture
def path(tmp_path):
    save_model(model(), tmp_path / 'model.onnx')
    return tmp_path / 'model.onnx'


def test_a_sealed_file_is_an_onnx_file(path):
    loaded = onnx.load(path)
    onnx.checker.check_model(loaded)
    assert [entry.key for entry in loaded.metadata_props] == ['mmdeploy_lite', SEAL_KEY]
    assert FileSession(path).run({'image': np.ones((1, 64), np.float32)})['out'].shape == (1, 64)
    before = path.read_bytes()
    seal(path)
    assert path.read_bytes() == before
    onnx.save(loaded, path)  # nothing was changed
    assert path.read_bytes() == before


def test_every_flipped_bit_is_found(path):
    good = path.read_bytes()
    found = 0
    for place in {*range(0, len(good), 97), *range(len(good) - 200, len(good))}:
        for bit in (0, 3, 7):
            bad = bytearray(good)
            bad[place] ^= 1 << bit
            path.write_bytes(bad)
            with pytest.raises(BackendError):
                check_seal(path)
            found += 1
    assert found > 800


def test_every_truncation_is_found(path):
    good = path.read_bytes()
    for size in [*range(0, len(good), 211), *range(len(good) - 250, len(good))]:
        path.write_bytes(good[:size])
        with pytest.raises(BackendError):
            check_seal(path)


def test_an_edited_file_is_refused_until_it_is_sealed_again(path):
    edited = onnx.load(path)
    edited.graph.node[0].name = 'another'
    onnx.save(edited, path)
    with pytest.raises(BackendError, match='another digest.*seal it again: mmdeploy_lite.runtime.seal'):
        FileSession(path)
    seal(path)
    assert FileSession(path).metadata['version'] == 1


def test_a_file_from_before_the_seal_is_read(tmp_path):
    old = model()
    old.metadata_props[0].value = json.dumps(dict(version=1))
    onnx.save(old, tmp_path / 'old.onnx')
    assert FileSession(tmp_path / 'old.onnx').metadata['version'] == 1


@pytest.mark.parametrize('content', [b'', b'PK\x03\x04', b'\x08\x08', b'\xff' * 300, b'\x00' * 300])
def test_what_is_no_onnx_file(tmp_path, content):
    (tmp_path / 'foreign.onnx').write_bytes(content)
    with pytest.raises(BackendError, match="not an ONNX file|no 'mmdeploy_lite' metadata"):
        FileSession(tmp_path / 'foreign.onnx')


def test_weights_beside_the_file(tmp_path):
    save_model(model(), tmp_path / 'model.onnx', external=True)
    (data,) = tmp_path.glob('*.data')
    assert FileSession(tmp_path / 'model.onnx').metadata
    moved = tmp_path / 'elsewhere' / 'model.onnx'
    moved.parent.mkdir()
    shutil.copy(tmp_path / 'model.onnx', moved)
    with pytest.raises(BackendError, match=f'{data.name}, which is not beside it'):
        FileSession(moved)
    content = bytearray(data.read_bytes())
    content[100] ^= 1
    data.write_bytes(content)
    with pytest.raises(BackendError, match=f'{data.name} is not what was exported'):
        FileSession(tmp_path / 'model.onnx')


@pytest.mark.parametrize('entry', ['', '[1, 2]', '7', '{', '"model.data"'])
def test_names_of_weights_that_are_none(tmp_path, entry):
    bad = model()
    made = bad.metadata_props.add()
    made.key, made.value = DATA_KEY, entry
    onnx.save(bad, tmp_path / 'model.onnx')
    seal(tmp_path / 'model.onnx')
    with pytest.raises(BackendError, match=f"'{DATA_KEY}' metadata cannot be read"):
        FileSession(tmp_path / 'model.onnx')
