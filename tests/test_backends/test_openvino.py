"""The same file and the same check, run by OpenVINO."""

from __future__ import annotations

import sys
import threading

import numpy as np
import onnx
import pytest
from onnx import helper

from mmdeploy_lite.check.verify import verify
from mmdeploy_lite.errors import BackendError
from mmdeploy_lite.export.metadata import write_metadata
from mmdeploy_lite.testing.exporting import export
from mmdeploy_lite.testing.images import empty, scene
from mmdeploy_lite.testing.models import find_busy, zoo_model
from mmdeploy_lite.testing.tiny import narrow_retinanet, tiny

pytest.importorskip('openvino', reason='OpenVINO is not installed')
SCALE = (96, 64)
RETINANET = narrow_retinanet(4)


@pytest.fixture(scope='module')
def detector(tmp_path_factory):
    model = zoo_model('mmdet::retinanet/retinanet_r18_fpn_1x_coco.py', RETINANET, scale=SCALE)
    samples = model.samples({'one': scene(1, 64, 96), 'two': scene(2, 64, 96), 'empty': empty(64, 96)})
    find_busy(model, samples[:2], samples[2], more_than=5, distinct=5)
    folder = tmp_path_factory.mktemp('detector')
    exported = export(model.task, samples[:2], folder)
    return model, samples, exported, folder / 'detection.onnx'


def load(path, **options):
    from mmdeploy_lite.backends import OpenVINOBackend

    return OpenVINOBackend(threads=1, **options).load(path)


def test_detections_of_any_size_are_equal(detector):
    model, samples, exported, path = detector
    samples = [*samples, model.sample_at('turned', scene(3, 96, 64), (96, 64))]
    session = load(path)
    found = verify(model.task, session, samples, model.task.tolerance, True)
    assert found.equal, [check.comparison.reasons for check in found.checks]
    assert max(check.comparison.matched for check in found.checks) > 5
    assert session.metadata == exported.session.metadata
    assert session.input_names == exported.session.input_names
    assert session.input_shapes['image'] == [1, 3, '?', '?'] and session.input_shapes['scale_factor'] == [1, 2]


@pytest.mark.parametrize('name', ['RTMDet', 'Mask R-CNN', 'SegFormer'])
def test_whole_models_of_any_size_are_equal(name, tmp_path):
    model = tiny(name)
    images = {'one': scene(11, 96, 128), 'turned': scene(12, 128, 96), 'empty': empty(96, 128)}
    samples = model.samples(images)
    if model.task.kind == 'detections':
        find_busy(model, samples[:-1], samples[-1])
    export(model.task, [samples[0], samples[-1]], tmp_path)
    found = verify(model.task, load(next(tmp_path.glob('*.onnx'))), samples, model.task.tolerance, True)
    assert found.equal, [check.comparison.reasons for check in found.checks]


def test_float32_also_where_the_processor_has_less(detector):
    """OpenVINO's own choice is bfloat16 on processors with it, and then no answer is equal."""
    assert load(detector[3])._compiled.get_property('INFERENCE_PRECISION_HINT').to_string() in ('f32', 'float32')


def test_several_threads_may_call_it(detector):
    model, samples, _, path = detector
    session = load(path)
    feeds = [model.task.feeds([sample]) for sample in samples]
    alone = [session.run(item)['dets'] for item in feeds]
    wrong = []

    def work(index: int) -> None:
        for _ in range(10):
            if not np.array_equal(session.run(feeds[index])['dets'], alone[index]):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(index % 3,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_wrong_inputs_are_refused(detector):
    model, samples, _, path = detector
    session, feeds = load(path), model.task.feeds(detector[1][:1])
    with pytest.raises(BackendError, match="input 'image' must be float32, got float64"):
        session.run({**feeds, 'image': feeds['image'].astype(np.float64)})
    with pytest.raises(BackendError, match="'scale_factor' must be 1 x 2, got 2 x 2"):
        session.run({**feeds, 'scale_factor': np.ones((2, 2), np.float32)})
    with pytest.raises(BackendError, match='takes image, scale_factor, got image'):
        session.run({'image': feeds['image']})


def save(path, operator: str = 'Relu', domain: str = '', described: bool = True):
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(operator, ['image'], ['out'], domain=domain)],
        'one',
        [value('image', onnx.TensorProto.FLOAT, [1, 3, 4, 4])],
        [value('out', onnx.TensorProto.FLOAT, [1, 3, 4, 4])],
    )
    imports = [helper.make_opsetid('', 17)] + [helper.make_opsetid(domain, 1)] * bool(domain)
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    if described:
        write_metadata(model, dict(task='test'))
    onnx.save(model, path)
    return path


def test_files_that_cannot_be_run(tmp_path):
    with pytest.raises(BackendError, match='there is no file'):
        load(tmp_path / 'none.onnx')
    with pytest.raises(BackendError, match="no 'mmdeploy_lite' metadata"):
        load(save(tmp_path / 'plain.onnx', described=False))
    with pytest.raises(BackendError, match='(?s)OpenVINO cannot .*Strange'):
        load(save(tmp_path / 'strange.onnx', 'Strange', 'mine'))
    (tmp_path / 'broken.onnx').write_bytes(b'nothing of the kind')
    with pytest.raises(BackendError, match='is not an ONNX file'):
        load(tmp_path / 'broken.onnx')
    good = save(tmp_path / 'good.onnx')
    with pytest.raises(BackendError, match='0 threads'):
        from mmdeploy_lite.runtime.openvino_session import OpenVINOSession

        OpenVINOSession(good, threads=0)
    with pytest.raises(BackendError, match='cannot compile .* for NOWHERE'):
        load(good, device='NOWHERE')


def test_without_openvino(monkeypatch):
    from mmdeploy_lite.backends import OpenVINOBackend

    monkeypatch.setitem(sys.modules, 'openvino', None)
    with pytest.raises(BackendError, match=r"pip install openvino, or 'mmdeploy_lite\[openvino\]'"):
        OpenVINOBackend()


def test_convolutions_are_made_faster_for_its_cpu_alone():
    from mmdeploy_lite.backends import OpenVINOBackend

    assert OpenVINOBackend().winograd and not OpenVINOBackend(device='GPU').winograd
