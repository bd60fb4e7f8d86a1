from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import mmdeploy_lite.ops  # noqa: F401
from mmdeploy_lite.check import Detections, SegMap
from mmdeploy_lite.check.visualize import detection_sample, save_comparison, segmentation_sample
from mmdeploy_lite.errors import WorkDirError

META = dict(classes=('cat', 'dog', 'cow'), palette=[(255, 0, 0), (0, 255, 0), (0, 0, 255)])


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        yield


@pytest.fixture(scope='module')
def image() -> np.ndarray:
    return np.full((300, 400, 3), 90, np.uint8)


def some(count: int = 2, masks: bool = False) -> Detections:
    boxes = np.array([[20, 60, 120, 160], [200, 80, 330, 250]], np.float32)[:count]
    mask = np.zeros((count, 300, 400), bool)
    for row, (x1, y1, x2, y2) in zip(mask, boxes.astype(int), strict=True):
        row[y1:y2, x1:x2] = True
    scores, labels = np.array([0.9, 0.6], np.float32)[:count], np.array([0, 2])[:count]
    return Detections(boxes, scores, labels, mask if masks else None)


def halves(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The two pictures below their titles."""
    picture = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_COLOR)
    width = (picture.shape[1] - 6) // 2
    assert picture[:32, :width].any() and (picture[:, width : width + 6] == 255).all()
    return picture[32:, :width], picture[32:, width + 6 :]


def draw(path: Path, image: np.ndarray, ref: Any, out: Any, meta: Any = META, task: str = 'detection', **options: Any):
    build = segmentation_sample if isinstance(ref, SegMap) else detection_sample
    save_comparison(path, image, build(ref), build(out), meta, task, **options)
    return halves(path)


def test_path_with_spaces_and_letters_of_any_kind(tmp_path: Path, image: np.ndarray) -> None:
    path = tmp_path / 'Vergleich für 猫.png'
    left, right = draw(path, image, some(), some())
    assert left.shape == right.shape == image.shape
    assert (left == right).all()
    # The first box is red (the palette is RGB), as its class says.
    edge = left[100, 18:23].astype(int)
    assert (edge[:, 2] - edge[:, 0]).max() > 80
    assert (left[280, 20] == 90).all()


def test_what_differs_is_seen_on_its_side(tmp_path: Path, image: np.ndarray) -> None:
    left, right = draw(tmp_path / 'a.png', image, some(), some(1))
    changed = (left != right).any(axis=-1)
    assert changed.any() and not changed[:, :190].any()
    assert (right[:, 200:] == 90).all() and not (left[:, 200:] == 90).all()


def test_masks_are_filled(tmp_path: Path, image: np.ndarray) -> None:
    left, right = draw(tmp_path / 'a.png', image, some(masks=True), some(masks=True), task='instance_segmentation')
    assert (left == right).all()
    red = left[110, 70].astype(int)
    assert red[2] > 150 and red[0] < 90
    assert not (draw(tmp_path / 'b.png', image, some(), some())[0][110, 70] != 90).any()


def test_label_map(tmp_path: Path, image: np.ndarray) -> None:
    seg_map = np.zeros((300, 400), np.int64)
    seg_map[:, 200:] = 1
    seg_map[:, 390:] = 255
    other = seg_map.copy()
    other[200:, :50] = 2
    left, right = draw(tmp_path / 'a.png', image, SegMap(seg_map), SegMap(other), task='segmentation')
    assert left[250, 20].argmax() == 2 and left[250, 300].argmax() == 1 and right[250, 20].argmax() == 0
    assert (left[:190] == right[:190]).all()


@pytest.mark.parametrize('meta', [None, {}, dict(classes=('cat',)), dict(classes=('cat', 'dog', 'cow'), palette=None)])
def test_missing_names_and_colours(tmp_path: Path, image: np.ndarray, meta: dict | None) -> None:
    left, _ = draw(tmp_path / 'a.png', image, some(), some(), meta)
    assert not (left == 90).all()
    seg_map = SegMap(np.arange(12).repeat(25)[:, None].repeat(400, 1))
    left, _ = draw(tmp_path / 'b.png', image, seg_map, seg_map, meta, 'segmentation')
    assert len({tuple(left[25 * i + 20, 399]) for i in range(12)}) == 12


def test_nothing_found(tmp_path: Path, image: np.ndarray) -> None:
    left, right = draw(tmp_path / 'a.png', image, Detections.empty(), some())
    assert (left == 90).all() and not (right == 90).all()
    empty = Detections.empty((300, 400))
    left, right = draw(tmp_path / 'b.png', image, empty, empty, task='instance_segmentation')
    assert (left == 90).all() and (right == 90).all()


def test_low_scores_are_drawn_when_there_is_nothing_else(tmp_path: Path, image: np.ndarray) -> None:
    low = some()
    low.scores *= 0.1
    assert not (draw(tmp_path / 'a.png', image, low, low)[0] == 90).all()
    mixed = some()
    mixed.scores[1] = 0.1
    left, _ = draw(tmp_path / 'b.png', image, mixed, mixed)
    assert (left[:, 200:] == 90).all()
    left, _ = draw(tmp_path / 'c.png', image, mixed, mixed, score_thr=0.05)
    assert not (left[:, 200:] == 90).all()


def test_a_faulty_answer_gets_its_picture(tmp_path: Path, image: np.ndarray) -> None:
    boxes = [
        [np.nan, 0, 9, 9],
        [120, 160, 20, 60],
        [-90, -90, 900, 900],
        [390, 290, 399, 299],
        [5, 5, 5, 5],
        [0, 0, 9, 9],
    ]
    faulty = Detections(
        np.array(boxes, np.float32),
        np.array([0.9, 0.9, 0.9, 0.9, 0.9, np.nan], np.float32),
        np.array([0, 1, 7, 2, -1, 0]),
    )
    left, right = draw(tmp_path / 'a.png', image, some(), faulty)
    assert not (right == 90).all()
    seg_map = np.full((300, 400), 9)
    seg_map[:100] = -1
    draw(tmp_path / 'b.png', image, SegMap(np.zeros((300, 400), np.int64)), SegMap(seg_map), task='segmentation')


def test_sizes(tmp_path: Path, image: np.ndarray) -> None:
    """Small images are enlarged so that text can be read, large ones reduced; answers follow."""
    small = SegMap(np.zeros((30, 40), np.int64))
    left, _ = draw(tmp_path / 'a.png', image, small, small, task='segmentation')
    assert left.shape == (300, 400, 3)
    wide = np.full((100, 4000, 3), 90, np.uint8)
    dets = Detections(np.array([[3000, 10, 3800, 90]], np.float32), np.array([0.9], np.float32), np.array([0]))
    left, _ = draw(tmp_path / 'b.png', wide, dets, dets)
    assert left.shape == (40, 1600, 3)
    assert (left[:, :1190] == 90).all() and not (left[:, 1190:1210] == 90).all()


def test_leaves_the_process_as_it_was(tmp_path: Path, image: np.ndarray) -> None:
    from mmengine.visualization import Visualizer

    before = dict(Visualizer._instance_dict)
    np.random.seed(7)
    expected = np.random.rand()
    np.random.seed(7)
    draw(tmp_path / 'a.png', image, some(masks=True), some(masks=True), task='instance_segmentation')
    assert np.random.rand() == expected
    assert dict(Visualizer._instance_dict) == before
    first = (tmp_path / 'a.png').read_bytes()
    draw(tmp_path / 'a.png', image, some(masks=True), some(masks=True), task='instance_segmentation')
    assert (tmp_path / 'a.png').read_bytes() == first


def test_unwritable_path(tmp_path: Path, image: np.ndarray) -> None:
    with pytest.raises(WorkDirError, match='cannot write the picture'):
        draw(tmp_path / 'missing' / 'a.png', image, some(), some())


def test_importing_it_loads_no_library() -> None:
    code = (
        'import sys, mmdeploy_lite.check.visualize;'
        "print([m for m in ('torch', 'mmengine', 'mmdet', 'mmseg', 'cv2', 'matplotlib') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == '[]'
