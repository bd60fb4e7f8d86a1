"""Cases 16 to 18: every pixel has the class that mmseg gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mmdeploy_lite.errors import BackendError, UnsupportedError
from mmdeploy_lite.testing.exporting import export
from mmdeploy_lite.testing.images import scene

from .conftest import exported_equal, references, tiny

Images = dict[str, np.ndarray]
SLIDE = {'model.test_cfg': dict(mode='slide', crop_size=(64, 64), stride=(43, 43))}


@pytest.mark.parametrize('batch', [1, 2])
@pytest.mark.parametrize(
    ('size', 'windows'), [((100, 150), 6), ((64, 64), 1), ((48, 100), 2)], ids=['uneven', 'one window', 'smaller']
)
@pytest.mark.parametrize('name', ['FCN', 'SegFormer'])
def test_case_16_slide(name: str, size: tuple[int, int], windows: int, batch: int, tmp_path: Path) -> None:
    model = tiny(name, SLIDE, batch_size=batch)
    images = {f'{seed}': scene(seed, 130, 170) for seed in range(3)}
    samples = [model.sample_at(key, image, size) for key, image in images.items()]
    assert len(np.unique(model.task.reference(samples[0])[0].seg_map)) > 3
    exported, _ = exported_equal(model, samples, tmp_path, dynamic=False)
    assert exported.graph.fired['slide_inference']
    assert calls_of_network(model.task.model, samples[0]) == windows
    classifiers = [
        node for node in exported.graph.model.graph.node if 'conv_seg' in node.name and node.op_type == 'Conv'
    ]
    assert len(classifiers) == 1, 'the network is in the graph once'


def calls_of_network(model: Any, sample: Any) -> int:
    """How often the reference runs the network: once a window."""
    calls: list[int] = []
    handle = model.backbone.register_forward_hook(lambda *_: calls.append(1))
    try:
        data = model.data_preprocessor(dict(inputs=[sample.inputs], data_samples=[sample.data_sample]), False)
        with torch.no_grad():
            model.predict(data['inputs'], data['data_samples'])
    finally:
        handle.remove()
    return len(calls)


@pytest.mark.parametrize('batch', [1, 2])
@pytest.mark.parametrize('stride', [(43, 43), (64, 64), (20, 31)], ids=str)
@pytest.mark.parametrize('name', ['FCN', 'SegFormer'])
def test_case_16_slide_of_any_size(name: str, stride: tuple[int, int], batch: int, tmp_path: Path) -> None:
    """One file for every image that is not smaller than a window, whatever was traced: one window, two, thirty."""
    model = tiny(name, {'model.test_cfg': dict(mode='slide', crop_size=(64, 64), stride=stride)}, batch_size=batch)
    sizes = [(100, 150), (64, 64), (150, 64), (65, 129), (128, 96)]
    samples = [model.sample_at(f'{size}', scene(seed, 130, 170), size) for seed, size in enumerate(sizes)]
    for traced in samples[:2] if batch == 1 else samples[:1]:
        exported, verification = exported_equal(model, samples, tmp_path, traced=traced)
        nodes = [node.op_type for node in exported.graph.model.graph.node]
        assert nodes.count('Loop') == 1 and 'Conv' not in nodes and 'ScatterND' not in nodes
    assert len(np.unique(references(verification)[0].seg_map)) > 3
    windows = {calls_of_network(model.task.model, sample) for sample in samples}
    assert 1 in windows and len(windows) > 2


def test_case_16_slide_is_never_exported_as_whole(tmp_path: Path) -> None:
    model = tiny('FCN', SLIDE)
    sample = model.sample_at('a', scene(1, 48, 150), (48, 150))
    with pytest.raises(UnsupportedError, match='smaller than a window of slide inference'):
        export(model.task, [sample, sample], tmp_path, dynamic=True)
    sample = model.sample_at('a', scene(1, 100, 150), (100, 150))
    answers = [item.task.reference(sample)[0].seg_map for item in (model, tiny('FCN'))]
    assert (answers[0] != answers[1]).any(), 'the two modes differ on this image'


def test_an_image_smaller_than_a_window_is_refused(tmp_path: Path) -> None:
    model = tiny('FCN', SLIDE)
    assert model.task.least_size == (64, 64)
    samples = [model.sample_at('a', scene(1, 100, 150), size) for size in ((100, 150), (63, 150))]
    exported, _ = exported_equal(model, samples[:1], tmp_path)
    with pytest.raises(BackendError):
        exported.session.run(model.task.feeds(samples[1:]))


def test_case_17_adaptive_pooling_of_every_size(tmp_path: Path) -> None:
    """PSPNet pools features of 1/8 of the image to 1, 2, 3 and 6 cells a side: 4 x 4, 8 x 20, 16 x 16, 45 x 60."""
    model = tiny('PSPNet')
    image = scene(1, 200, 260)
    sizes = [(32, 32), (64, 160), (128, 128), (360, 480)]
    samples = [model.sample_at(f'{size}', image, size) for size in sizes]
    for traced in (samples[0], samples[3]):
        exported_equal(model, samples, tmp_path, traced=traced)
    exported_equal(model, samples[3:], tmp_path, dynamic=False)


@pytest.mark.parametrize('dynamic', [True, False])
def test_case_18_padding_is_cut_off_then_logits_are_resized(dynamic: bool, tmp_path: Path) -> None:
    options = {'model.data_preprocessor.test_cfg': dict(size_divisor=32)}
    model = tiny('FCN', options, scale=(80, 60))
    samples = model.samples({'a': scene(1, 100, 75), 'b': scene(2, 100, 75), 'c': scene(3, 75, 100)})
    samples = samples if dynamic else samples[:2]
    assert samples[0].shape == (80, 60) and model.task.preprocess_spec.divisor == 32
    _, verification = exported_equal(model, samples, tmp_path, dynamic=dynamic)
    for sample, reference in zip(samples, references(verification), strict=True):
        assert reference.seg_map.shape == sample.image.shape[:2]
    small = F.interpolate(
        torch.from_numpy(network_map(model, samples[0]))[None, None].float(), size=(100, 75), mode='nearest'
    )
    share = (small[0, 0].long().numpy() != references(verification)[0].seg_map).mean()
    assert share > 0.01, 'argmax first and nearest after would show'


def network_map(model: Any, sample: Any) -> np.ndarray:
    """The class map in the pixels of ``image``, padding cut off: argmax before resizing."""
    network = model.task.model
    data = network.data_preprocessor(dict(inputs=[sample.inputs], data_samples=[sample.data_sample]), False)
    with torch.no_grad():
        logits = network.encode_decode(data['inputs'], [data['data_samples'][0].metainfo])
    height, width = sample.shape
    return logits[0, :, :height, :width].argmax(0).numpy()
