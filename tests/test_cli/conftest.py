"""Two small models, and ``deploy`` on them in one process."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from mmdeploy_lite import cli
from mmdeploy_lite.apis import deploy
from mmdeploy_lite.loading import load_config
from mmdeploy_lite.runtime import Model
from mmdeploy_lite.testing.images import empty, scene
from mmdeploy_lite.testing.models import find_busy, zoo_model
from mmdeploy_lite.testing.tiny import narrow_fcn, narrow_retinanet

SCALE = (96, 64)
SEGMENTOR = {
    **narrow_fcn(4),
    'model.pretrained': None,
    'test_dataloader.dataset.pipeline.1.scale': SCALE,
    'val_dataloader.dataset.pipeline.1.scale': SCALE,
}
DETECTOR = {
    **narrow_retinanet(4),
    'test_dataloader.dataset.pipeline.1.scale': SCALE,
    'val_dataloader.dataset.pipeline.1.scale': SCALE,
}
WORKERS = ['test_dataloader.num_workers=0', 'test_dataloader.persistent_workers=False']
PREVIOUS = b'a file of an earlier run'


class Inputs:
    """Config, checkpoint and images of two small models, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.image, self.other, self.nothing = folder / 'scene.png', folder / 'other.jpg', folder / 'empty.png'
        cv2.imwrite(str(self.image), scene(1, SCALE[1], SCALE[0]))
        cv2.imwrite(str(self.other), scene(2, SCALE[0], SCALE[1]))
        cv2.imwrite(str(self.nothing), empty(SCALE[1], SCALE[0]))
        self.segmentor = self._write('segmentor', 'mmseg::fcn/fcn_r18-d8_4xb2-80k_cityscapes-512x1024.py', SEGMENTOR)
        self.detector = self._write('detector', 'mmdet::retinanet/retinanet_r18_fpn_1x_coco.py', DETECTOR)

    def _write(self, name: str, base: str, options: dict) -> tuple[Path, Path]:
        config, checkpoint = self.folder / f'{name}.py', self.folder / f'{name}.pth'
        load_config(base, options).dump(config)
        model = zoo_model(str(config), scale=SCALE)
        if name == 'detector':
            samples = model.samples({'scene': scene(1, SCALE[1], SCALE[0]), 'empty': empty(SCALE[1], SCALE[0])})
            find_busy(model, samples[:1], samples[1], more_than=5, distinct=5)
        torch.save(model.loaded.model.state_dict(), checkpoint)
        return config, checkpoint


@pytest.fixture(scope='module')
def inputs(tmp_path_factory) -> Inputs:
    return Inputs(tmp_path_factory.mktemp('inputs'))


@pytest.fixture(scope='module')
def dataset(inputs, tmp_path_factory) -> list[str]:
    """Options for a test dataset whose labels are what PyTorch answers: of the exact file, mIoU is 100."""
    root = tmp_path_factory.mktemp('dataset')
    pictures, labels = root / 'leftImg8bit' / 'val', root / 'gtFine' / 'val'
    pictures.mkdir(parents=True)
    labels.mkdir(parents=True)
    options = {'deploy.backend.threads': 1}
    result = deploy(*inputs.segmentor, inputs.image, work_dir=root / 'work', cfg_options=options)
    for seed in range(3):
        path = pictures / f'{seed}_leftImg8bit.png'
        cv2.imwrite(str(path), scene(seed + 20, SCALE[1], SCALE[0]))
        answer = Model(result.path, threads=1)(path).seg_map
        cv2.imwrite(str(labels / f'{seed}_gtFine_labelTrainIds.png'), answer.astype(np.uint8))
    return [f'test_dataloader.dataset.data_root={root}', *WORKERS]


@pytest.fixture
def work_dir(tmp_path) -> Path:
    folder = tmp_path / 'work'
    folder.mkdir()
    (folder / 'model.onnx').write_bytes(PREVIOUS)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob('*')) if path.is_file()}


def run(work_dir: Path | None, *args: object) -> int:
    words = ['deploy', *map(str, args)]
    return cli.main([*words, '--work-dir', str(work_dir)] if work_dir is not None else words)


@pytest.fixture
def refused(work_dir, capsys):
    """Runs ``deploy`` on bad input; returns the line that it says."""

    def check(*args: object, folder: Path | None = None) -> str:
        before = files(work_dir)
        code = run(folder or work_dir, *args)
        captured = capsys.readouterr()
        assert code == 2, captured.err
        assert files(work_dir) == before == {'model.onnx': PREVIOUS}
        assert 'Traceback' not in captured.err + captured.out
        (line,) = captured.err.splitlines()
        assert line.startswith('error: ')
        return line

    return check
