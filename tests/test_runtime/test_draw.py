from __future__ import annotations

import numpy as np
import pytest

from mmdeploy_lite.runtime import Detections, SegMap
from mmdeploy_lite.runtime.draw import draw

PALETTE = [(200, 0, 0), (0, 200, 0)]
SHAPE = (120, 160)


def detections(boxes, scores, labels, masks=None) -> Detections:
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    return Detections(boxes, np.array(scores, np.float32), np.array(labels, np.int64), masks, SHAPE, ('one', 'two'))


def test_a_box_in_its_color_and_nothing_inside():
    image = np.zeros((*SHAPE, 3), np.uint8)
    picture = draw(image, detections([[50, 60, 90, 100]], [0.9], [1]), PALETTE)
    for point in ((60, 70), (100, 70), (80, 50), (80, 90)):
        assert picture[point].tolist() == [0, 200, 0]
    assert not picture[80, 70].any() and not picture[110].any()
    assert not image.any()


def test_the_score_threshold_and_who_is_on_top():
    image = np.zeros((*SHAPE, 3), np.uint8)
    boxes = [[50, 60, 90, 100]] * 2
    assert not draw(image, detections(boxes, [0.2, 0.1], [0, 1]), PALETTE, 0.3).any()
    assert draw(image, detections(boxes, [0.9, 0.1], [0, 1]), PALETTE, 0.05)[100, 70].tolist() == [0, 0, 200]


def test_boxes_on_the_border_and_beyond_are_seen():
    image = np.zeros((*SHAPE, 3), np.uint8)
    picture = draw(image, detections([[-5, -1e9, 160, 120]], [0.9], [0]), PALETTE)
    assert picture[119, 100].tolist() == picture[60, 159].tolist() == picture[60, 0].tolist() == [0, 0, 200]


def test_masks_are_blended():
    image = np.full((*SHAPE, 3), 100, np.uint8)
    masks = np.zeros((1, *SHAPE), bool)
    masks[0, 80:90, 60:70] = True
    picture = draw(image, detections([[50, 60, 90, 100]], [0.9], [0], masks), PALETTE)
    assert picture[85, 65].tolist() == [50, 50, 150] and picture[95, 75].tolist() == [100, 100, 100]


@pytest.mark.parametrize('palette', [PALETTE, []])
def test_a_map(palette):
    image = np.full((2, 3, 3), 100, np.uint8)
    picture = draw(image, SegMap(np.array([[0, 1, 5], [0, 0, 0]]), (2, 3)), palette)
    colors = [[50, 50, 150], [50, 150, 50]] if palette else [[178] * 3] * 2
    assert picture[0].tolist() == [*colors, [178] * 3]


@pytest.mark.parametrize(
    'image', [np.zeros(SHAPE, np.uint8), np.zeros((*SHAPE, 1), np.uint8), np.zeros((*SHAPE, 4), np.uint8)]
)
def test_other_channels_and_names_that_opencv_cannot_write(image):
    found = Detections(np.float32([[2, 2, 30, 30]]), np.float32([1]), np.array([0]), None, SHAPE, ('кошка',))
    assert draw(image, found, PALETTE).shape == (*SHAPE, 3)


def test_no_objects():
    assert not draw(np.zeros((*SHAPE, 3), np.uint8), detections([], [], [], np.zeros((0, *SHAPE), bool)), PALETTE).any()
