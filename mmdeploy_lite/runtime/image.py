"""Images as the runtime takes them: files, and arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ..errors import ImageError

# color types of mmcv's image loader, of the cv2 backend
COLOR_TYPES = {
    'color': cv2.IMREAD_COLOR,
    'grayscale': cv2.IMREAD_GRAYSCALE,
    'unchanged': cv2.IMREAD_UNCHANGED,
    'color_ignore_orientation': cv2.IMREAD_IGNORE_ORIENTATION | cv2.IMREAD_COLOR,
    'grayscale_ignore_orientation': cv2.IMREAD_IGNORE_ORIENTATION | cv2.IMREAD_GRAYSCALE,
}


def read_image(path: str | Path, flag: int = cv2.IMREAD_COLOR) -> np.ndarray:
    """Decode an image file.

    NumPy reads the bytes: ``cv2.imread`` cannot open every path that is not ASCII.

    Args:
        path: the file.
        flag: of ``cv2.imdecode``. The default makes BGR of gray and RGBA files, and turns them as EXIF says.

    Returns:
        (H, W, 3) uint8 BGR, or what ``flag`` makes of the file.

    Raises:
        ImageError: there is no such file, or OpenCV cannot decode it.
    """
    file = Path(path)
    if not file.is_file():
        raise ImageError(
            f'image {path} ' + ('is not a file; name the images one by one' if file.exists() else 'does not exist')
        )
    try:
        data = np.fromfile(file, np.uint8)
    except OSError as error:
        raise ImageError(f'image {path} cannot be read: {error.strerror or error}') from error
    try:
        image = cv2.imdecode(data, flag) if data.size else None
    except (cv2.error, MemoryError) as error:  # more pixels than OpenCV decodes, among others
        raise ImageError(f'image {path} cannot be decoded: {in_one_line(error)}; give a smaller one') from error
    if image is None:
        raise ImageError(
            f'image {path} is not an image that OpenCV can decode ({data.size} bytes); give a JPEG or PNG file'
        )
    return image


def check_array(image: Any, channels: int, name: str) -> np.ndarray:
    """An array as an image of so many channels.

    Args:
        image: should be (H, W, ``channels``) uint8; for one channel, (H, W) will do.
        channels: that the file takes.
        name: for the message.

    Raises:
        ImageError: it is something else.
    """
    order = ' BGR' if channels == 3 else ''
    wanted = f'an image must be a file or a uint8{order} array (H, W, {channels}) of 0-255'
    if not isinstance(image, np.ndarray):
        raise ImageError(f'{wanted}; {name} is of type {type(image).__name__}')
    if image.dtype != np.uint8:
        raise ImageError(f'{wanted}; {name} is {image.dtype} {image.shape}')
    if image.ndim == 2 and channels == 3:
        raise ImageError(f'{wanted}; {name} is gray, {image.shape}: cv2.cvtColor(image, cv2.COLOR_GRAY2BGR)')
    if image.ndim == 3 and image.shape[2] == 4 and channels == 3:
        raise ImageError(f'{wanted}; {name} has an alpha channel, {image.shape}: leave it out, image[..., :3]')
    if image.ndim not in (2, 3) or (1 if image.ndim == 2 else image.shape[2]) != channels:
        raise ImageError(f'{wanted}; {name} is {image.shape}')
    if not image.size:
        raise ImageError(f'{name} is empty: {image.shape}')
    return image


def in_one_line(error: Exception) -> str:
    """OpenCV's own words without the place in its source; or that there was not enough memory."""
    words = str(getattr(error, 'err', '') or error).strip()
    return words.splitlines()[0] if words else 'out of memory'
