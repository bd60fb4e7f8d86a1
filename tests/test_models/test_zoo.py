"""The sweep over the libraries' configs: its parts, since all of it takes hours."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from mmdeploy_lite.export.batch import over_images
from mmdeploy_lite.export.metadata import write_metadata
from mmdeploy_lite.runtime.seal import seal
from mmdeploy_lite.testing.exporting import export
from mmdeploy_lite.testing.images import scene
from mmdeploy_lite.testing.models import zoo_model
from mmdeploy_lite.testing.zoo import _any_batch, read_list
from mmdeploy_lite.testing.zoo_table import merged, with_second, write_table

YOLOX = ('mmdet::yolox/yolox_tiny_8xb8-300e_coco.py', {'model.bbox_head.num_classes': 3})


def test_any_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file as it is written: sealed."""
    model = zoo_model(*YOLOX, scale=(128, 96))
    samples = model.samples({'one': scene(1, 96, 96), 'two': scene(2, 96, 96)})
    graph = export(model.task, samples, tmp_path).graph.model
    write_metadata(graph, dict(task=model.task.name, sealed=True))
    path = tmp_path / 'model.onnx'
    onnx.save(graph, str(path))
    seal(path)
    assert _any_batch(model.task, path, samples)

    def broken(graph: onnx.ModelProto) -> onnx.ModelProto:
        """The first image for all."""
        graph = over_images(graph)
        for node in graph.graph.node:
            if node.op_type == 'Loop':
                for inner in node.attribute[0].g.node:
                    if inner.op_type == 'Gather' and inner.input[0] == 'image':
                        inner.input[1] = 'zero'
        graph.graph.initializer.append(onnx.helper.make_tensor('zero', onnx.TensorProto.INT64, [1], [0]))
        return graph

    monkeypatch.setattr('mmdeploy_lite.export.batch.over_images', broken)
    assert not _any_batch(model.task, path, samples)


def test_page(tmp_path: Path) -> None:
    entry = dict(config='mmdet::ssd/b.py', family='ssd', status='refused', equal=False, note='a | b', rewriters=['nms'])
    other = dict(config='mmseg::fcn/a.py', family='fcn', status='PyTorch fails', equal=False, note='/x/y/mmseg/z.py')
    entries = merged(merged([], other), entry)
    assert [item['config'] for item in entries] == ['mmdet::ssd/b.py', 'mmseg::fcn/a.py']
    assert entries[1]['note'] == 'mmseg/z.py'
    assert merged(entries, {**entry, 'equal': True})[0]['equal'] and len(merged(entries, entry)) == 2
    write_table(entries, tmp_path / 'zoo.md', 145)
    page = (tmp_path / 'zoo.md').read_text()
    assert '## MMDetection: 0 of 1 equal' in page and '(1 that PyTorch itself cannot run)' in page
    assert '| ssd/b | refused | | | | | | | | a / b |' in page and '| `nms` | 1 | ssd |' in page


def test_second_exporter_beside_the_first(tmp_path: Path) -> None:
    first = dict(config='mmdet::ssd/b.py', family='ssd', status='refused', equal=False, nodes=20, export_seconds=1.5)
    second = {**first, 'status': 'equal', 'equal': True, 'nodes': 10, 'dynamic': True, 'tracer_ratio': 0.98}
    first = {**first, 'task': 'segmentation', 'clear_pixels': 0, 'worst_score_diff': 0, 'time_ratio': 1, 'excused': 0}
    entries = with_second(merged([], {**first, 'dynamic': False}), second)
    assert not entries[0]['equal'] and entries[0]['torch_export']['equal']
    again = merged(entries, {**first, 'dynamic': True})
    assert again[0]['dynamic'] and again[0]['torch_export'] == entries[0]['torch_export']
    assert with_second(entries, {**second, 'config': 'mmdet::unknown.py'}) == entries
    write_table(entries, tmp_path / 'zoo.md', 145)
    page = (tmp_path / 'zoo.md').read_text()
    assert '## By torch.export: 1 of 1 equal' in page
    assert '| ssd/b | equal | 10 (20) | 1.5 (1.5) | 0.98 | dynamic |  |' in page


def test_lists_name_configs_of_the_wheels() -> None:
    from mmdeploy_lite.loading import read_config

    folder = Path(__file__).parents[2] / 'tools' / 'zoo_configs'
    names = read_list(folder / 'detection.txt', 'mmdet') + read_list(folder / 'segmentation.txt', 'mmseg')
    assert len(names) == len(set(names)) == 145
    read_config(names[0]), read_config(names[-1])
