"""Long runs of the runtime: memory over many calls, and threads that share a model."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from ...apis import deploy
from ...runtime import Model
from ..images import scene
from ..tiny import narrow_fcn, narrow_retinanet
from .fixtures import write_model

SCALE = (96, 64)
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    'detector': (
        'mmdet::retinanet/retinanet_r18_fpn_1x_coco.py',
        {**narrow_retinanet(4), 'model.bbox_head.num_classes': 5, 'model.test_cfg.nms_pre': 100},
    ),
    'segmentor': (
        'mmseg::fcn/fcn_r18-d8_4xb2-80k_cityscapes-512x1024.py',
        narrow_fcn(4),
    ),
}
"""Models of a few milliseconds an image."""

LIMIT = 1.0
"""Megabytes that 1,000 calls may add: as a slope, in which single allocations hardly show."""


def small_model(kind: str, folder: Path, seed: int = 0) -> tuple[Path, Path, Path]:
    """Config, checkpoint and image of one of :data:`SMALL`."""
    import cv2

    folder.mkdir(parents=True, exist_ok=True)
    config = write_model(folder, *SMALL[kind], seed=seed, scale=SCALE)
    image = folder / 'image.png'
    cv2.imwrite(str(image), scene(100 * seed, 64, 96))
    return config, config.with_suffix('.pth'), image


def resident() -> float:
    """This process' memory in megabytes."""
    pages = int(Path('/proc/self/statm').read_text().split()[1])
    return pages * os.sysconf('SC_PAGE_SIZE') / 1e6


def slope(values: list[float]) -> float:
    """Growth per 1,000 calls: the median over all pairs half the run apart, which no single jump moves."""
    half = len(values) // 2
    steps = [(later - earlier) / half for earlier, later in zip(values[:half], values[half:], strict=False)]
    return float(np.median(steps) * 1000)


def memory(kind: str, folder: Path, calls: int) -> dict[str, Any]:
    """Call a file over and over with images of changing size.

    Returns:
        ``calls``, ``mb_per_1000_calls`` after the first fifth of them, and whether it is ``flat``.
    """
    model = Model(deploy(*small_model(kind, folder), work_dir=folder).path, threads=1)
    rng = np.random.default_rng(0)
    used = []
    for index in range(calls):
        height, width = (int(side) for side in rng.integers(32, 160, 2))
        model(scene(index % 50, height, width))
        used.append(resident())
    grown = slope(used[calls // 5 :])
    return dict(kind=kind, calls=calls, mb_per_1000_calls=round(grown, 3), flat=grown < LIMIT)


def threads(kind: str, folder: Path, count: int = 8, images: int = 200) -> dict[str, Any]:
    """Several threads call one model: each answer is that of one thread alone.

    Returns:
        ``threads``, ``images`` and how many answers ``differ``.
    """
    model = Model(deploy(*small_model(kind, folder), work_dir=folder).path, threads=1)
    rng = np.random.default_rng(1)
    pictures = [scene(index, *(int(side) for side in rng.integers(32, 160, 2))) for index in range(images)]
    alone = [model(picture) for picture in pictures]
    with ThreadPoolExecutor(count) as pool:
        together = list(pool.map(model, pictures))
    differ = sum(not same(one, other) for one, other in zip(alone, together, strict=True))
    return dict(kind=kind, threads=count, images=images, differ=differ)


def same(one: Any, other: Any) -> bool:
    """Whether two answers of the runtime are the same to the last bit."""
    pairs = zip(vars(one).values(), vars(other).values(), strict=True)
    return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)
