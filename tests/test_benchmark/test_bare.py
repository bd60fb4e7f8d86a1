"""The bare network, and as it is written where the file computes it in another order."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from mmdeploy_lite.benchmark.run import export_bare
from mmdeploy_lite.testing.exporting import settings_of
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
