"""Images that a user names."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from ..errors import ImageError


def check_image(path: str | Path) -> np.ndarray:
    """Decode an image file, as a check that it is one.

    The bytes are read by NumPy: ``cv2.imread`` cannot open every path that is not ASCII.

    Args:
        path: the file.

    Returns:
        (H, W, 3) uint8, BGR, turned as its EXIF orientation says: what mmcv reads by default.

    Raises:
        ImageError: there is no such file, or OpenCV cannot decode it.
    """
    file = Path(path)
    if not file.exists():
        raise ImageError(f'image {path} does not exist')
    if not file.is_file():
        raise ImageError(f'image {path} is not a file; name the images one by one')
    try:
        data = np.fromfile(file, np.uint8)
    except OSError as error:
        raise ImageError(f'image {path} cannot be read: {error.strerror or error}') from error
    image = cv2.imdecode(data, cv2.IMREAD_COLOR) if data.size else None
    if image is None:
        raise ImageError(
            f'image {path} is not an image that OpenCV can decode ({data.size} bytes); give a JPEG or PNG file'
        )
    return image
