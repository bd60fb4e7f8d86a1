"""Which graph is written: with convolutions by Winograd's algorithm, or as the model has them."""

from __future__ import annotations

import cv2
import onnx
import pytest

from mmdeploy_lite.backends import ONNXRuntimeBackend
from mmdeploy_lite.export import winograd
from mmdeploy_lite.export.attempt import Exporting
from mmdeploy_lite.export.graphs import attribute
from mmdeploy_lite.precision.lower import build_scheme, lower
from mmdeploy_lite.precision.network import find_networks
from mmdeploy_lite.progress import Stages
from mmdeploy_lite.runtime.session import read_metadata
from mmdeploy_lite.testing.exporting import settings_of
from mmdeploy_lite.testing.images import scene
from mmdeploy_lite.testing.tiny import tiny


@pytest.fixture
def always(monkeypatch):
    """Whether it saves work or not."""
    monkeypatch.setattr(winograd, 'NODES', -1e15)


def attempt(path, deploy=None, name='FCN', reason='a test', **options):
    model = tiny(name, {}, **options)
    samples = model.samples({'one': scene(1, 64, 96), 'two': scene(2, 64, 96)})
    settings = settings_of(model.task, deploy)
    exporting = Exporting(model.task, model.loaded, settings, model.steps, path, Stages())
    return model, exporting.run(samples, reason)


def kernels(path):
    """Of the convolutions of a file, as far as these are weights."""
    model = onnx.load(str(path))
    dims = {tensor.name: tuple(tensor.dims[2:]) for tensor in model.graph.initializer}
    return [dims.get(node.input[1]) for node in model.graph.node if node.op_type == 'Conv']


def plain_ones(folder):
    """How many convolutions of the model could be replaced."""
    path = folder / 'plain.onnx'
    attempt(path, {'winograd': False})
    nodes = [node for node in onnx.load(str(path)).graph.node if node.op_type == 'Conv']
    strides = [attribute(node, 'strides', [1, 1]) for node in nodes]
    return sum(kernel == (3, 3) and stride == [1, 1] for kernel, stride in zip(kernels(path), strides, strict=True))


def says(path):
    return read_metadata({entry.key: entry.value for entry in onnx.load(str(path)).metadata_props})['winograd']


CUDA = ['CUDAExecutionProvider', 'CPUExecutionProvider']


@pytest.mark.parametrize(
    ('deploy', 'wanted'),
    [
        ({}, True),
        ({'winograd': True}, True),
        ({'winograd': False}, False),
        ({'winograd': True, 'backend': {'providers': CUDA}}, True),
        ({'backend': {'providers': CUDA}}, False),
        ({'optimize': False}, False),
    ],
    ids=str,
)
@pytest.mark.filterwarnings('ignore:Specified provider')
def test_who_decides(deploy, wanted, always, tmp_path, monkeypatch):
    backend = ONNXRuntimeBackend()
    load = backend.load
    monkeypatch.setattr(ONNXRuntimeBackend, 'load', lambda self, path: load(path))  # there may be no GPU
    path = tmp_path / 'model.onnx'
    _, found = attempt(path, deploy)
    assert found.verification.equal and found.given_up is None
    # six for each, those with the largest weights among them
    assert kernels(path).count(None) == 6 * plain_ones(tmp_path) * wanted
    assert says(path) == wanted
    assert found.graph.plain is None


@pytest.mark.parametrize('reason', ['a test', None])
@pytest.mark.parametrize('batch_size', [1, 2, None])
def test_any_size_and_any_batch(batch_size, reason, always, tmp_path):
    _, found = attempt(tmp_path / 'model.onnx', name='RetinaNet', reason=reason, batch_size=batch_size)
    assert found.verification.equal and found.given_up is None and found.reason == reason
    assert says(tmp_path / 'model.onnx')


def test_little_work_is_left_as_it_is(tmp_path):
    _, found = attempt(tmp_path / 'model.onnx')
    assert found.verification.equal and not says(tmp_path / 'model.onnx')
    assert None not in kernels(tmp_path / 'model.onnx')


@pytest.fixture
def wrong(always, monkeypatch):
    """An algorithm that rounds far too much."""
    matrices = winograd.transforms()
    matrices = matrices._replace(result=matrices.result * 1.05)
    monkeypatch.setattr(winograd, 'transforms', lambda: matrices)


def test_what_is_not_equal_is_written_without(wrong, tmp_path):
    path = tmp_path / 'model.onnx'
    _, found = attempt(path, {'precision': {'type': 'fp16'}})
    assert found.verification.equal and found.given_up.startswith('one is unequal: ')
    assert found.graph.plain is None, 'what is lower is made of what was written'
    assert None not in kernels(path) and not says(path)
    session = ONNXRuntimeBackend().load(path)
    model, _ = attempt(tmp_path / 'other.onnx', {'winograd': False})
    assert path.read_bytes() == (tmp_path / 'other.onnx').read_bytes()
    assert session.run(model.task.feeds(found.samples[:1]))


def test_what_is_unequal_either_way_says_so_of_the_plain_one(wrong, tmp_path, monkeypatch):
    model = tiny('FCN', {})
    samples = model.samples({'one': scene(1, 64, 96), 'two': scene(2, 64, 96)})
    reference = model.task.reference
    monkeypatch.setattr(model.task, 'reference', lambda sample: reference(samples[sample is samples[0]]))
    exporting = Exporting(
        model.task, model.loaded, settings_of(model.task), model.steps, tmp_path / 'model.onnx', Stages()
    )
    found = exporting.run(samples, 'a test')
    assert not found.verification.equal and found.given_up
    assert None not in kernels(tmp_path / 'model.onnx')


@pytest.mark.parametrize('name', ['fp16', 'int8'])
def test_less_exact_files_are_made_of_the_plain_graph(name, always, tmp_path):
    for seed in range(2):
        cv2.imwrite(str(tmp_path / f'{seed}.png'), scene(seed, 64, 96))
    precision = dict(type=name, metrics=False, **(dict(calibration=str(tmp_path)) if name == 'int8' else {}))
    path = tmp_path / 'model.onnx'
    model, found = attempt(path, {'precision': precision})
    assert found.verification.equal and says(path)
    layers = [len(network.layers) for network in find_networks(onnx.load(str(tmp_path / 'model.onnx')))]
    backend, target = ONNXRuntimeBackend(), tmp_path / f'model.{name}.onnx'
    scheme = build_scheme(precision)
    report = lower(scheme, path, target, model.task, found, 2, model.loaded.cfg, backend)
    assert report.agreement and not says(target)
    attempt(tmp_path / 'plain.onnx', {'winograd': False})
    wanted = [len(network.layers) for network in find_networks(onnx.load(str(tmp_path / 'plain.onnx')))]
    assert wanted != layers
    if name == 'int8':
        assert report.details['of_layers'] == sum(wanted)
