"""Checkpoints that bring code along are refused and nothing of them runs; harmless ones come through whole."""

from __future__ import annotations

import builtins
import io
import os
import pickle
import tarfile
import zipfile
from collections import OrderedDict, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.logging import HistoryBuffer

from mmdeploy_lite.errors import CheckpointError
from mmdeploy_lite.loading import load_checkpoint_file
from mmdeploy_lite.loading.unpickle import Inert

WEIGHTS = {'conv.weight': torch.arange(6.0).reshape(2, 3)}


class Calls:
    """Unpickles as a call of ``function``."""

    def __init__(self, function, *args) -> None:
        self.reduced = function, args

    def __reduce__(self):
        return self.reduced


class HasState:
    """Unpickles as an instance of ``kind`` that is then given ``state``."""

    def __init__(self, kind, args, state) -> None:
        self.reduced = kind, args, state

    def __reduce__(self):
        return self.reduced


def touch(path: Path) -> Calls:
    return Calls(os.system, f'touch {path}')


def from_bytes(path: Path) -> Calls:
    inner = io.BytesIO()
    torch.save(touch(path), inner, _use_new_zipfile_serialization=False)
    return Calls(torch.storage._load_from_bytes, inner.getvalue())


def in_history(path: Path) -> HistoryBuffer:
    buffer = HistoryBuffer([1.0], [1])
    buffer.payload = touch(path)
    return buffer


def in_object_array(path: Path) -> np.ndarray:
    array = np.empty(1, object)
    array[0] = touch(path)
    return array


PAYLOADS = {
    'os.system': touch,
    'exec': lambda path: Calls(builtins.exec, f'import pathlib; pathlib.Path({str(path)!r}).touch()'),
    'eval': lambda path: Calls(builtins.eval, f'__import__("pathlib").Path({str(path)!r}).touch()'),
    'in a HistoryBuffer': in_history,
    'as an argument of a ConfigDict': lambda path: ConfigDict(a=touch(path)),
    'as the state of a weight': lambda path: HasState(OrderedDict, (), {'_metadata': touch(path)}),
    'in an object array': in_object_array,
    'torch.storage': from_bytes,
}


@pytest.mark.parametrize('zipped', [True, False], ids=['zip', 'legacy'])
@pytest.mark.parametrize('protocol', [2, 4])
@pytest.mark.parametrize('payload', PAYLOADS)
def test_a_payload_is_refused_and_does_not_run(payload, protocol, zipped, tmp_path):
    ran = tmp_path / 'ran'
    file = tmp_path / 'evil.pth'
    content = {'state_dict': WEIGHTS, 'meta': {'payload': PAYLOADS[payload](ran)}}
    torch.save(content, file, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)

    with pytest.raises(CheckpointError, match='--unsafe-checkpoint'):
        load_checkpoint_file(file)
    assert not ran.exists()

    checkpoint = load_checkpoint_file(file, unsafe=True)
    assert ran.exists(), 'the payload is a dud, so the test above proves nothing'
    assert torch.equal(checkpoint['state_dict']['conv.weight'], WEIGHTS['conv.weight'])


RAW = {
    'INST': b"(S'touch %s'\nios\nsystem\n.",
    'OBJ': b"(cos\nsystem\nS'touch %s'\no.",
    'REDUCE of a name with Storage in it': b"cmymodule\nEvilStorage\n(S'touch %s'\ntR.",
    'a call of what may only be named': b'c__builtin__\nint\n(V5\ntR.',
    'a dotted name': b'\x80\x04\x8c\x0bcollections\x8c\x0babc.os.path\x93.',
    'an attribute of a class': b'c__builtin__\ngetattr\n(ccollections\nOrderedDict\nVfromkeys\ntR.',
    'the state of a function': b'ctorch._utils\n_rebuild_tensor_v2\n}b.',
    'the state of a class': b'ccollections\nOrderedDict\n(N}Vx\nVy\nstb.',
    'a copyreg extension': b'\x80\x02\x82\x01.',
    'a persistent id as text': b'P1\n.',
    'a persistent id of a module': b"(S'module'\nccollections\nOrderedDict\nS'file'\nS'source'\ntQ.",
    'an object dtype': b"cnumpy\ndtype\n(S'O8'\nI0\nI1\ntR.",
    'a dtype with fields': b"cnumpy\ndtype\n(S'V8'\nI0\nI1\ntR.",
    'a dtype forged by its state': (
        b"cnumpy\ndtype\n(S'f8'\nI0\nI1\ntR(I3\nS'|'\nN(S'x'\nt}S'x'\n(cnumpy\ndtype\n(S'i8'\nI0\nI1\ntRI0\ntsI8\nI1\nI0\ntb."
    ),
    'an array of a class of its own': b'cnumpy._core.multiarray\n_reconstruct\n(cnumpy\nmatrix\n(I0\ntVb\ntR.',
    'a codec': b'c_codecs\nencode\n(Vtext\nVrot13\ntR.',
}


@pytest.mark.parametrize('zipped', [True, False], ids=['zip', 'legacy'])
@pytest.mark.parametrize('case', RAW)
def test_a_handwritten_pickle_is_refused(case, zipped, tmp_path):
    ran = tmp_path / 'ran'
    file = tmp_path / 'evil.pth'
    data = RAW[case]
    if b'%s' in data:
        data = data % str(ran).encode()
    if zipped:
        with zipfile.ZipFile(file, 'w') as archive:
            archive.writestr('archive/data.pkl', data)
            archive.writestr('archive/version', '3\n')
    else:
        file.write_bytes(data)
    with pytest.raises(CheckpointError, match='needs unsafe unpickling'):
        load_checkpoint_file(file)
    assert not ran.exists()


def test_an_array_with_a_forged_shape_is_refused(tmp_path):
    file = tmp_path / 'forged.pth'
    for shape in ((-1, -6), (7,)):
        state = (1, shape, np.dtype('u1'), False, b'123456')
        torch.save({'x': HasState(np.ndarray((0,), 'b').__reduce__()[0], (np.ndarray, (0,), b'b'), state)}, file)
        with pytest.raises(CheckpointError, match=r'NumPy array of shape .* has 6 bytes'):
            load_checkpoint_file(file)


@pytest.mark.filterwarnings('ignore:`torch.jit:DeprecationWarning')
def test_a_torchscript_archive_is_refused(tmp_path):
    file = tmp_path / 'script.pth'
    torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)).save(str(file))
    for unsafe in (False, True):
        with pytest.raises(CheckpointError, match='TorchScript'):
            load_checkpoint_file(file, unsafe=unsafe)


def test_the_tar_format_is_not_unpacked(tmp_path):
    file = tmp_path / 'old.pth'
    with tarfile.open(file, 'w') as archive:
        for name in ('storages', 'tensors', 'pickle'):
            data = pickle.dumps(0, 2)
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    with pytest.raises(CheckpointError, match='cannot be read'):
        load_checkpoint_file(file)


def harmless() -> dict:
    base = torch.arange(24.0).reshape(4, 6)
    attributed = torch.ones(2)
    attributed.note = 'dropped'
    history = HistoryBuffer([1.0, 2.0], [1, 1])
    history._set_default_statistics()
    return {
        'state_dict': OrderedDict(
            whole=base,
            view=base[1:3, ::2],
            transposed=base.T,
            parameter=torch.nn.Parameter(torch.ones(3)),
            half=torch.ones(2, dtype=torch.bfloat16),
            boolean=torch.tensor([True, False]),
            scalar=torch.tensor(5),
            empty=torch.zeros(0, 4),
            attributed=attributed,
        ),
        'meta': {
            'dataset_meta': ConfigDict(CLASSES=('cat', 'dog'), PALETTE=np.array([[1, 2, 3], [4, 5, 6]])),
            'float': np.float64(0.5),
            'int': np.int64(7),
            'truth': np.bool_(True),
            'texts': np.array(['a', 'bcd']),
            'big': np.arange(3, dtype='>i4'),
            'fortran': np.asfortranarray(np.arange(6.0).reshape(2, 3)),
            'complex': 1 + 2j,
            'bytes': b'\x00\xff',
            'set': {1, 2},
            'counts': defaultdict(list, a=[1]),
            'size': torch.Size([1, 2]),
            'device': torch.device('cpu'),
            'dtype': torch.float16,
            'cfg': Config(dict(a=1)),
        },
        'message_hub': {'log_scalars': OrderedDict(loss=history)},
    }


@pytest.mark.parametrize('zipped', [True, False], ids=['zip', 'legacy'])
@pytest.mark.parametrize('protocol', [2, 3, 4, 5])
def test_harmless_content_comes_through(protocol, zipped, tmp_path):
    file = tmp_path / 'harmless.pth'
    saved = harmless()
    # torch cannot read its older format with a storage that has no type, as this one's; some releases have no uint16,
    # and some cannot write it
    if zipped and getattr(torch, 'uint16', None) in getattr(torch.storage, '_new_dtypes', set)():
        saved['state_dict']['unsigned'] = torch.tensor([1, 65535], dtype=torch.uint16)
    torch.save(saved, file, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)

    loaded = load_checkpoint_file(file)
    weights = loaded['state_dict']
    assert list(weights) == list(saved['state_dict'])
    for key, value in saved['state_dict'].items():
        assert weights[key].dtype == value.dtype and weights[key].stride() == value.stride()
        assert torch.equal(weights[key], value)
    assert weights['view'].untyped_storage().data_ptr() == weights['whole'].untyped_storage().data_ptr()
    meta, expected = loaded['meta'], saved['meta']
    assert meta['dataset_meta']['CLASSES'] == ('cat', 'dog')
    assert type(meta['dataset_meta']) is dict
    np.testing.assert_array_equal(meta['dataset_meta']['PALETTE'], [[1, 2, 3], [4, 5, 6]])
    for key in ('texts', 'big', 'fortran'):
        np.testing.assert_array_equal(meta[key], expected[key])
    assert meta['fortran'].flags.f_contiguous
    for key in ('float', 'int', 'truth', 'complex', 'bytes', 'set', 'counts', 'size', 'device', 'dtype'):
        assert meta[key] == expected[key], key
    assert type(meta['float']) is np.float64
    assert isinstance(meta['cfg'], Inert) and isinstance(loaded['message_hub']['log_scalars']['loss'], Inert)


@pytest.mark.parametrize(('old', 'new'), [(b'numpy._core.', b'numpy.core.'), (b'numpy.core.', b'numpy._core.')])
def test_numpy_names_its_modules_as_version_1_or_2(old, new, tmp_path):
    file, renamed = tmp_path / 'saved.pth', tmp_path / 'renamed.pth'
    torch.save({'array': np.arange(3), 'scalar': np.float32(2)}, file)
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(renamed, 'w') as target:
        for name in source.namelist():
            data = source.read(name)
            target.writestr(name, data.replace(old, new) if name.endswith('data.pkl') else data)
            assert not name.endswith('data.pkl') or b'core.multiarray' in data
    loaded = load_checkpoint_file(renamed)
    assert loaded['scalar'] == 2 and loaded['array'].tolist() == [0, 1, 2]


def test_the_versions_of_a_state_dict_survive(tmp_path):
    file = tmp_path / 'versions.pth'
    saved = torch.nn.BatchNorm2d(2).state_dict()
    torch.save(saved, file)
    assert load_checkpoint_file(file)._metadata == saved._metadata
