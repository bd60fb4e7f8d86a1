"""The bare network, and as it is written where the file computes it in another order."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from mmdeploy_lite.benchmark.run import benchmark, export_bare
from mmdeploy_lite.export import winograd
from mmdeploy_lite.export.metadata import write_metadata
from mmdeploy_lite.testing.exporting import export, settings_of
from mmdeploy_lite.testing.images import scene
from mmdeploy_lite.testing.tiny import tiny


@pytest.mark.parametrize(
    ('name', 'options', 'titles'),
    [
        ('RTMDet', {}, ['bare network']),
        ('SegFormer', {}, ['bare network']),  # of few channels, there is nothing to gain
        ('SegFormer', {'model.decode_head.channels': 256}, ['bare network', 'bare network as written']),
    ],
)
def test_as_written_where_it_is_another_one(name, options, titles, tmp_path):
    model = tiny(name, options)
    (sample,) = model.samples({'one': scene(1, 64, 96)})
    found = export_bare(model.task, sample, tmp_path, settings_of(model.task).rewriters)
    assert list(found) == titles
    feeds = model.task.feeds([sample])
    answers = []
    for path in found.values():
        session = onnxruntime.InferenceSession(str(path), providers=['CPUExecutionProvider'])
        answers.append(session.run(None, {value.name: feeds[value.name] for value in session.get_inputs()}))
    for one, other in zip(answers[0], answers[-1], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.mark.parametrize('faster', [True, False])
def test_convolutions_as_the_file_has_them(faster, tmp_path, monkeypatch):
    monkeypatch.setattr(winograd, 'NODES', -1e15)
    model = tiny('RetinaNet', {})
    samples = model.samples({'one': scene(1, 64, 96), 'two': scene(2, 64, 96)})
    exported = export(model.task, samples, tmp_path, dynamic=False, deploy={'winograd': faster})
    write_metadata(exported.graph.model, {'task': model.task.name, 'winograd': faster})
    path = tmp_path / 'model.onnx'
    onnx.save(exported.graph.model, str(path))
    result = benchmark('tiny', model.task, samples[0], path, exported.settings.rewriters, threads=1, runs=1)
    rows = {row['name']: row for row in result.rows}
    assert ('bare network as written' in rows) == faster
    assert rows['bare network']['nodes'] < rows['exported file']['nodes']
    if faster:
        assert rows['bare network as written']['nodes'] < rows['bare network']['nodes'] / 2
