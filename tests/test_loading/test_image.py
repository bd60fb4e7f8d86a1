from __future__ import annotations

import cv2
import numpy as np
import pytest

from mmdeploy_lite.errors import ImageError
from mmdeploy_lite.loading import check_image


def test_an_image_whose_name_is_not_ascii(tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    path = tmp_path / 'кошка 猫.png'
    cv2.imencode('.png', image)[1].tofile(path)
    np.testing.assert_array_equal(check_image(path), image)


def test_a_grey_image_has_three_channels(tmp_path):
    cv2.imencode('.png', np.zeros((4, 6), np.uint8))[1].tofile(tmp_path / 'grey.png')
    assert check_image(str(tmp_path / 'grey.png')).shape == (4, 6, 3)


def test_what_is_not_an_image(tmp_path):
    (tmp_path / 'text.jpg').write_text('not an image')
    (tmp_path / 'empty.jpg').write_bytes(b'')
    for name, message in {
        'gone.jpg': 'gone.jpg does not exist',
        '': 'is not a file',
        'text.jpg': r'text.jpg is not an image that OpenCV can decode \(12 bytes\)',
        'empty.jpg': r'\(0 bytes\)',
    }.items():
        with pytest.raises(ImageError, match=message):
            check_image(tmp_path / name)
