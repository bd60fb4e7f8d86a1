"""Whole models through torch.export: of any size, found right at others, and an empty image."""

from __future__ import annotations

import pytest

from mmdeploy_lite.testing.exporting import export
from mmdeploy_lite.testing.models import find_busy
from mmdeploy_lite.testing.tiny import tiny

from .conftest import check

pytestmark = pytest.mark.usefixtures('torch_export')

EXPORTER = {'exporter': {'type': 'TorchExportExporter'}}


@pytest.mark.parametrize(('name', 'dynamic'), [('RTMDet', True), ('FCN', True), ('Mask R-CNN', False)])
def test_family(name, dynamic, images, tmp_path):
    model = tiny(name)
    samples = model.samples(images)
    if model.task.kind == 'detections':
        find_busy(model, samples[:-1], samples[-1])
    if dynamic:
        samples.insert(1, model.sample_at('other', images['wide'], (96, 160)))
    else:
        samples = [sample for sample in samples if sample.shape == samples[0].shape]
    exported = export(model.task, [samples[0], samples[-1]], tmp_path, dynamic=dynamic, deploy=EXPORTER)
    assert [entry.version for entry in exported.graph.model.opset_import] == [18]
    found = check(exported.verify(samples))
    if model.task.kind == 'detections':
        assert len(found.answers[0][1]) > 10 and len(found.answers[-1][1]) == 0
    assert (len({sample.shape for sample in samples}) > 1) == dynamic


def test_the_tracer_is_as_it_was_afterwards(images, tmp_path):
    """What stood in while torch.export ran is gone, in the slots of torch.Tensor's type too."""
    model = tiny('FCN')
    samples = model.samples(images)[::3]
    before = export(model.task, samples, tmp_path).graph.model.SerializeToString()
    export(model.task, samples, tmp_path, deploy=EXPORTER)
    assert export(model.task, samples, tmp_path).graph.model.SerializeToString() == before
