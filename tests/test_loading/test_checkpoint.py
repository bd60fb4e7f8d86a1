from __future__ import annotations

import hashlib
import os
import pickle
from collections import OrderedDict

import pytest
import torch
from torch import nn

from mmdeploy_lite.errors import CheckpointError
from mmdeploy_lite.loading import extract_state_dict, file_sha256, load_checkpoint_file, load_weights


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(OrderedDict(conv=nn.Conv2d(3, 4, 1), bn=nn.BatchNorm2d(4), fc=nn.Linear(4, 2)))


def trained(model: nn.Module) -> OrderedDict:
    """Other weights of the same form."""
    return OrderedDict((key, value + 1) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    ('write', 'message'),
    [
        (None, r'gone.pth does not exist'),
        (lambda path: path.mkdir(), 'is not a file'),
        (lambda path: path.write_bytes(b''), r'\(0 bytes\) cannot be read'),
        (lambda path: path.write_bytes(b'\x00' * 64), 'cannot be read, it is damaged or not a PyTorch checkpoint'),
        (lambda path: path.write_bytes(pickle.dumps({'a': 1})), 'cannot be read'),
        (lambda path: torch.save([torch.ones(1)], path), 'holds a list, not a dict'),
    ],
)
def test_what_is_not_a_checkpoint(write, message, tmp_path):
    path = tmp_path / 'gone.pth'
    if write:
        write(path)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint_file(path)


@pytest.mark.parametrize('zipped', [True, False], ids=['zip', 'legacy'])
def test_a_truncated_checkpoint(zipped, tmp_path):
    path = tmp_path / 'cut.pth'
    torch.save({'a': torch.ones(1000)}, path, _use_new_zipfile_serialization=zipped)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(CheckpointError, match='cannot be read'):
        load_checkpoint_file(path)


def test_an_address_is_not_downloaded():
    with pytest.raises(CheckpointError, match='download it first'):
        load_checkpoint_file('https://example.org/model.pth')


def test_sha256(tmp_path):
    path = tmp_path / 'data'
    path.write_bytes(bytes(range(256)) * 5000)
    assert file_sha256(path) == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    'wrap',
    [
        lambda weights: {'state_dict': weights, 'ema_state_dict': {'conv.weight': torch.zeros(1)}, 'epoch': 3},
        lambda weights: {'model': weights, 'optimizer': {}},
        lambda weights: {'params': weights},
        lambda weights: weights,
        lambda weights: {**weights, 'epoch': 3},
        lambda weights: {'state_dict': OrderedDict((f'module.{key}', value) for key, value in weights.items())},
    ],
    ids=['state_dict', 'model', 'params', 'plain', 'plain with more', 'module.'],
)
def test_where_the_weights_are(wrap, model, tmp_path):
    weights = trained(model)
    torch.save(wrap(weights), tmp_path / 'a.pth')
    found = extract_state_dict(load_checkpoint_file(tmp_path / 'a.pth'))
    assert list(found) == list(weights)
    assert all(torch.equal(found[key], weights[key]) for key in weights)


def test_versions_lose_the_prefix_too(model):
    parallel = nn.ModuleDict({'module': model}).state_dict()
    assert extract_state_dict({'state_dict': parallel})._metadata['bn'] == {'version': 2}


def test_a_checkpoint_without_weights():
    with pytest.raises(CheckpointError, match=r'a.pth has no weights .*its keys are: meta, optimizer'):
        extract_state_dict({'meta': {}, 'optimizer': {'lr': 1}}, 'a.pth')


def test_weights_that_fit(model, logged):
    weights = trained(model)
    load_weights(model, weights)
    assert all(torch.equal(model.state_dict()[key], weights[key]) for key in weights)
    assert logged == []


def test_num_batches_tracked_may_be_missing(model, logged):
    weights = trained(model)
    weights._metadata = model.state_dict()._metadata  # without versions torch fills it in by itself
    del weights['bn.num_batches_tracked']
    load_weights(model, weights)
    assert logged == []


def test_another_size_and_missing_weights(model, logged):
    weights = trained(model)
    weights['fc.weight'] = torch.zeros(80, 4)
    weights['fc.bias'] = torch.zeros(80)
    del weights['bn.running_mean']
    with pytest.raises(CheckpointError) as caught:
        load_weights(model, weights, 'a.pth')
    message = str(caught.value)
    assert '2 of 9 have another size (fc.weight is (80, 4), the model has (2, 4); fc.bias is (80,)' in message
    assert '1 of 9 are missing (bn.running_mean (4,))' in message
    assert 'a.pth' in message and '--allow-mismatch' in message

    before = {key: value.clone() for key, value in model.state_dict().items()}
    load_weights(model, weights, 'a.pth', allow_mismatch=True)
    assert len(logged) == 1 and 'fc.weight' in logged[0] and 'bn.running_mean' in logged[0]
    after = model.state_dict()
    assert all(torch.equal(after[key], before[key]) for key in ('fc.weight', 'fc.bias', 'bn.running_mean'))
    assert torch.equal(after['conv.weight'], weights['conv.weight'])


def test_only_missing_weights(model):
    weights = trained(model)
    del weights['conv.weight']
    with pytest.raises(CheckpointError, match=r'1 of 9 are missing \(conv.weight \(4, 3, 1, 1\)\)'):
        load_weights(model, weights)


def test_a_long_list_is_cut(model):
    with pytest.raises(CheckpointError, match=r'8 of 9 are missing \(conv.weight .*, and 3 more\)'):
        load_weights(model, {'other': torch.zeros(1)})


def test_weights_without_a_place_are_a_warning(model, logged):
    load_weights(model, {**trained(model), 'aux.weight': torch.zeros(1)}, 'a.pth')
    assert len(logged) == 1 and '1 weights that the model has no place for: aux.weight' in logged[0]


def test_a_scalar_of_an_old_version_fits(logged):
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.0))

    model = Scale()
    load_weights(model, {'scale': torch.tensor([3.0])})
    assert model.scale.item() == 3 and logged == []
