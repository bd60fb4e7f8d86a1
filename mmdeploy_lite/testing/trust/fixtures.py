"""The models that the check has to catch faults in: the two of the demo, and six that are calibrated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cv2
import torch

from ...loading import load_config
from ..images import empty, scene
from ..models import UnfitModelError, find_busy, zoo_model
from ..tiny import SCALE, TINY

DEMO_IMAGES = ('landscape.jpg', 'portrait.jpg', 'square.jpg', 'narrow.jpg', 'empty.jpg')
CALIBRATED = ('RetinaNet', 'YOLOX', 'Faster R-CNN', 'Mask R-CNN', 'PSPNet', 'SegFormer')
NAMES = ('demo detector', 'demo segmentor', *CALIBRATED)
_ONE_IMAGE = ', one image'
POOR = tuple(f'{name}{_ONE_IMAGE}' for name in ('demo detector', 'RetinaNet', 'Mask R-CNN'))
"""The same as files of one size, compared on one square image that is neither scaled nor padded: it cannot show every
fault, and the report has to say so.
"""
_FAR = 3000
"""Pixels, of images of 190, beyond which no trained model puts a box."""
PAIRS = ('YOLOX', 'PSPNet')
"""Deployed as files of two images."""

# (h, w) of the images, of which not all come out of the pipeline as whole numbers of the padding's 32 pixels, and
# whose width and height are not scaled alike
_SIZES = {'landscape': (151, 190), 'portrait': (190, 151), 'other': (140, 190)}
_OPTIONS: dict[str, dict[str, Any]] = {
    # more candidates than nms_pre, and than max_per_img, at this size
    'RetinaNet': {'model.test_cfg.nms_pre': 100, 'model.test_cfg.max_per_img': 40},
    # fewer proposals than there are, so that their scores decide
    'Faster R-CNN': {'model.test_cfg.rpn.max_per_img': 40},
    'Mask R-CNN': {'model.test_cfg.rpn.max_per_img': 40},
    'YOLOX': {'model.test_cfg.nms.iou_threshold': 0.3},  # else random boxes hardly overlap
}


@dataclass
class Fixture:
    """What a user would deploy.

    Attributes:
        name: one of :data:`NAMES` or :data:`POOR`.
        config: file.
        checkpoint: file.
        images: files; the first is traced.
        cfg_options: of the command line.
    """

    name: str
    config: Path
    checkpoint: Path
    images: list[Path]
    cfg_options: dict[str, Any] = field(default_factory=dict)


def fixture(name: str, folder: Path, demo: Path, seed: int = 0) -> Fixture:
    """One of :data:`NAMES` or :data:`POOR`.

    Args:
        name: of the fixture.
        folder: for the files of a calibrated model.
        demo: folder of the demo.
        seed: of a calibrated model's weights and images.
    """
    if name.endswith(_ONE_IMAGE):
        whole = fixture(name.removesuffix(_ONE_IMAGE), folder, demo, seed)
        image = folder / 'square.png'
        folder.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(image), scene(5, 128, 128))
        return replace(whole, images=[image], cfg_options={**whole.cfg_options, 'deploy.input.shape': (128, 128)})
    if name.startswith('demo '):
        kind = name.removeprefix('demo ')
        images = [demo / 'images' / image for image in DEMO_IMAGES]
        return Fixture(name, demo / 'configs' / f'{kind}.py', demo / f'{kind}.pth', images)
    folder.mkdir(parents=True, exist_ok=True)
    base, cut = TINY[name]
    config = write_model(folder, base, {**cut, **_OPTIONS.get(name, {})}, seed)
    images = []
    for index, (word, size) in enumerate(_SIZES.items()):
        images.append(folder / f'{word}.png')
        cv2.imwrite(str(images[-1]), scene(100 * seed + index, *size))
    options = {'deploy.input.batch_size': 2} if name in PAIRS else {}
    return Fixture(name, config, config.with_suffix('.pth'), images, options)


def write_model(
    folder: Path, base: str, options: Mapping[str, Any], seed: int = 0, scale: tuple[int, int] = SCALE
) -> Path:
    """A calibrated model as a config and, beside it, a checkpoint.

    A detector finds nothing in an empty image and more than 20 objects in one of three others.

    Args:
        folder: that they are written to.
        base: name of the libraries' config.
        options: over it, by dotted key.
        seed: of the weights and the images.
        scale: see :func:`mmdeploy_lite.testing.models.shrink_pipeline`.

    Returns:
        The config file, ``model.py``.

    Raises:
        UnfitModelError: the weights of this seed find nothing, or boxes far outside of the image.
    """
    model = zoo_model(base, options, scale=scale, seed=seed)
    images = {word: scene(100 * seed + index, *size) for index, (word, size) in enumerate(_SIZES.items())}
    if model.task.kind == 'detections':
        samples = model.samples({**images, 'empty': empty(*_SIZES['landscape'])})
        find_busy(model, samples[:3], samples[3])
        reach = max(float(model.task.reference(sample)[0].bboxes.max(initial=0)) for sample in samples[:3])
        if reach > _FAR:
            raise UnfitModelError(
                f'random weights give boxes that end at {reach:.2g} px: exponentials, whose rounding alone is more than'
                ' the tolerance of a box'
            )
    cfg = load_config(base, options)
    cfg.test_dataloader.dataset.pipeline = model.steps
    cfg.model.pop('pretrained', None)
    path = folder / 'model.py'
    cfg.dump(path)
    torch.save(model.loaded.model.state_dict(), path.with_suffix('.pth'))
    return path
