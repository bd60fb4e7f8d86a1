"""The test pipeline of MMDetection and MMSegmentation, in NumPy and OpenCV.

Each step does to the image what the class of its name in mmcv 2.1, mmdet 3.3 or mmseg 1.2 does, bit for bit: the same
calls of OpenCV on sizes rounded the same way. What annotations would need is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ..errors import ImageError, UnsupportedError
from .image import COLOR_TYPES, check_array, in_one_line, read_image
from .prepared import Prepared

_INTERPOLATIONS = {
    'nearest': cv2.INTER_NEAREST,
    'bilinear': cv2.INTER_LINEAR,
    'bicubic': cv2.INTER_CUBIC,
    'area': cv2.INTER_AREA,
    'lanczos': cv2.INTER_LANCZOS4,
}
_BORDERS = {
    'constant': cv2.BORDER_CONSTANT,
    'edge': cv2.BORDER_REPLICATE,
    'reflect': cv2.BORDER_REFLECT_101,
    'symmetric': cv2.BORDER_REFLECT,
}


_Step = Callable[[Prepared], Prepared]


class Pipeline:
    """A test pipeline, ready to run. Holds nothing that changes: several threads may call it at once.

    Args:
        steps: as the config or the file's metadata has them; ``type`` is a name, with or without a scope, or a class.
        codebase: 'mmdet' or 'mmseg', whose step is meant where both have one of that name.
        channels: of the images.

    Raises:
        UnsupportedError: a step, or an argument of one, that cannot be reproduced.
    """

    def __init__(self, steps: Sequence[Mapping[str, Any]], codebase: str = 'mmdet', channels: int = 3) -> None:
        self.channels = channels
        names = [_name(step) for step in steps]
        if not names or names[0] not in _LOADERS:
            first = names[0] if names else 'an empty pipeline'
            raise UnsupportedError(cannot_reproduce(first, 'must begin with LoadImageFromFile'))
        if names[-1] not in _PACKERS:
            raise UnsupportedError(cannot_reproduce(names[-1], f'must end with {" or ".join(_PACKERS)}'))
        built = [_build(step, codebase) for step in steps]
        self._flag, to_float32 = built[0]
        self._steps: list[tuple[str, _Step]] = [('LoadImageFromFile', _to_float32)] if to_float32 else []
        self._steps += list(zip(names, built, strict=True))[1:-1]

    def read(self, path: str | Path) -> np.ndarray:
        """The pixels of a file, as the pipeline's first step decodes them.

        Raises:
            ImageError: no such file, or it cannot be decoded.
        """
        return read_image(path, self._flag)

    def __call__(self, image: str | Path | np.ndarray) -> Prepared:
        """Run the steps.

        Args:
            image: a file, or (H, W, C) uint8, for three channels in the order BGR.

        Raises:
            ImageError: no image of the right kind, or one that a step cannot take.
        """
        from_file = isinstance(image, (str, Path))
        name = f'image {image}' if from_file else 'the image'
        pixels = check_array(self.read(image) if from_file else image, self.channels, name)
        prepared = Prepared(pixels, pixels, (1.0, 1.0), name)
        for kind, step in self._steps:
            try:
                prepared = step(prepared)
            except (cv2.error, MemoryError) as error:
                height, width = prepared.ori_shape
                raise ImageError(
                    f'{name} of {height} x {width} pixels cannot pass {kind}: {in_one_line(error)}'
                ) from error
        return prepared


def check_steps(steps: Sequence[Mapping[str, Any]], codebase: str = 'mmdet') -> None:
    """Whether the runtime can do what a test pipeline does.

    Raises:
        UnsupportedError: it cannot; names the step.
    """
    Pipeline(steps, codebase)


def _name(step: Mapping[str, Any]) -> str:
    kind = step['type']
    return (kind if isinstance(kind, str) else kind.__name__).split('.')[-1]


def cannot_reproduce(step: str, why: str) -> str:
    """What is wrong with a step, and what to do."""
    return (
        f'the runtime cannot reproduce the test pipeline: {step} {why}. Change the test pipeline, or leave it out of'
        ' the file with deploy.input.runtime_pipeline=False and prepare the images yourself'
    )


def _build(step: Mapping[str, Any], codebase: str) -> Any:
    name, kind = _name(step), step['type']
    scope = kind.split('.')[0] if isinstance(kind, str) and '.' in kind else codebase
    builder = _BUILDERS.get(name)
    if name == 'ResizeShortestEdge' and scope == 'mmseg':
        builder = _mmseg_shortest_edge
    if builder is None:
        raise UnsupportedError(cannot_reproduce(name, f'is not one of {", ".join(_BUILDERS)}'))
    arguments = {key: value for key, value in step.items() if key not in ('type', '_scope_')}
    try:
        return builder(**arguments)
    except TypeError as error:  # an argument that this version does not know
        raise UnsupportedError(cannot_reproduce(name, f'cannot be built: {error}')) from error
    except ValueError as error:
        raise UnsupportedError(cannot_reproduce(name, str(error))) from error


def _choice(table: Mapping[str, int], what: str, value: Any) -> int:
    if value not in table:
        raise ValueError(f'has {what}={value!r}; known are {", ".join(table)}')
    return table[value]


def _only_cv2(what: str, value: Any) -> None:
    if value not in ('cv2', None):
        raise ValueError(f"has {what}={value!r}; the runtime has only 'cv2'")


# -- the ends ---------------------------------------------------------------------------------------------------------


def _load(
    to_float32: bool = False,
    color_type: str = 'color',
    imdecode_backend: str | None = 'cv2',
    file_client_args: Any = None,  # where training found its files says nothing about the images of production
    ignore_empty: bool = False,
    backend_args: Any = None,
) -> tuple[int, bool]:
    _only_cv2('imdecode_backend', imdecode_backend)
    return _choice(COLOR_TYPES, 'color_type', color_type), to_float32


def _to_float32(prepared: Prepared) -> Prepared:
    return replace(prepared, image=prepared.image.astype(np.float32))


def _pack(meta_keys: Any = None) -> _Step:
    return lambda prepared: prepared


# -- resizing ---------------------------------------------------------------------------------------------------------


def _scaled(size: tuple[int, int], scale: float | tuple[float, float], rounding: float = 0.5) -> tuple[int, int]:
    """(w, h) times a factor, or a factor each."""
    by_w, by_h = scale if isinstance(scale, tuple) else (scale, scale)
    return int(size[0] * float(by_w) + rounding), int(size[1] * float(by_h) + rounding)


def _fitted(size: tuple[int, int], scale: float | tuple[float, float], rounding: float) -> tuple[int, int]:
    """(w, h) of the same aspect ratio, as large as fits into ``scale``, whichever side of it is the longer one."""
    if isinstance(scale, tuple):
        scale = min(max(scale) / max(size), min(scale) / min(size))
    return _scaled(size, scale, rounding)


def _resized(prepared: Prepared, size: tuple[int, int], interpolation: int) -> Prepared:
    """Resize to (w, h); the scale factor is that of the rounded sizes."""
    height, width = prepared.shape
    if min(size) < 1:
        raise ImageError(
            f'{prepared.name} of {height} x {width} pixels is too thin: a side of it is resized to nothing'
        )
    image = cv2.resize(prepared.image, size, interpolation=interpolation)
    return replace(prepared, image=image, scale_factor=(size[0] / width, size[1] / height))


def _pair(value: Any, what: str) -> Any:
    """A number or two, positive; a list, as json has it, becomes a tuple."""
    numbers = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if len(numbers) not in (1, 2) or not all(
        isinstance(number, (int, float)) and not isinstance(number, bool) and number > 0 for number in numbers
    ):
        raise ValueError(f'has {what}={value!r}, which is not one or two positive numbers')
    return numbers if isinstance(value, (list, tuple)) else value


def _resize(
    scale: Any = None,
    scale_factor: Any = None,
    keep_ratio: bool = False,
    clip_object_border: bool = True,
    backend: str | None = 'cv2',
    interpolation: str = 'bilinear',
    rounding: float = 0.5,
) -> _Step:
    _only_cv2('backend', backend)
    code = _choice(_INTERPOLATIONS, 'interpolation', interpolation)
    if scale is None and scale_factor is None:
        raise ValueError('has neither scale nor scale_factor')
    if scale is not None:
        scale = _pair(scale, 'scale')
        scale = (scale, scale) if isinstance(scale, int) else scale
        if not keep_ratio and not (isinstance(scale, tuple) and all(isinstance(side, int) for side in scale)):
            raise ValueError(f'has scale={scale!r}; without keep_ratio it must be whole pixels')
    else:
        scale_factor = _pair(scale_factor, 'scale_factor')

    def step(prepared: Prepared) -> Prepared:
        size = prepared.shape[::-1]
        target = scale if scale is not None else _scaled(size, scale_factor)
        return _resized(prepared, _fitted(size, target, rounding) if keep_ratio else target, code)

    return step


def _fix_scale_resize(**arguments: Any) -> _Step:
    return _resize(**arguments, rounding=0.0)


def _fix_shape_resize(
    width: int,
    height: int,
    pad_val: Any = None,
    keep_ratio: bool = False,
    clip_object_border: bool = True,
    backend: str | None = 'cv2',
    interpolation: str = 'bilinear',
) -> _Step:
    if not keep_ratio:
        return _resize((width, height), backend=backend, interpolation=interpolation)
    _only_cv2('backend', backend)
    code = _choice(_INTERPOLATIONS, 'interpolation', interpolation)
    pad = _pad((width, height), pad_val=0 if pad_val is None else pad_val)

    def step(prepared: Prepared) -> Prepared:
        size = prepared.shape[::-1]
        factor = min(width / size[0], height / size[1])
        resized = _resized(prepared, _fitted(size, _scaled(size, factor), 0.5), code)
        # here mmdet does not take the factor of the rounded sizes
        return pad(replace(resized, scale_factor=(factor, factor)))

    return step


def _shortest_edge(scale: Any, max_size: int | None = None, resize_type: str = 'Resize', **resize: Any) -> _Step:
    short = min(_pair(scale, 'scale')) if isinstance(scale, (list, tuple)) else _pair(scale, 'scale')
    if resize_type not in ('Resize', 'FixScaleResize'):
        raise ValueError(f'has resize_type={resize_type!r}; known are Resize, FixScaleResize')
    build = _resize if resize_type == 'Resize' else _fix_scale_resize
    build(scale=(1, 1), **resize)  # what is wrong with the arguments is said at once

    def step(prepared: Prepared) -> Prepared:
        height, width = prepared.shape
        size = short * 1.0
        factor = size / min(height, width)
        new_h, new_w = (size, factor * width) if height < width else (factor * height, size)
        if max_size and max(new_h, new_w) > max_size:
            factor = max_size * 1.0 / max(new_h, new_w)
            new_h, new_w = new_h * factor, new_w * factor
        target = max(int(new_w + 0.5), 1), max(int(new_h + 0.5), 1)
        return build(scale=target, **resize)(prepared)

    return step


def _mmseg_shortest_edge(scale: Any, max_size: int) -> _Step:
    return _shortest_edge(scale, max_size, keep_ratio=True)


def _to_multiple(size_divisor: Any = 32, interpolation: str | None = None) -> _Step:
    code = _choice(_INTERPOLATIONS, 'interpolation', interpolation or 'bilinear')
    divisor = _pair(size_divisor, 'size_divisor')
    by_w, by_h = divisor if isinstance(divisor, tuple) else (divisor, divisor)

    def step(prepared: Prepared) -> Prepared:
        height, width = prepared.shape
        size = int(np.ceil(width / by_w)) * by_w, int(np.ceil(height / by_h)) * by_h
        # mmseg leaves the scale factor as it was: maps are resized to the original size, which needs none
        return replace(_resized(prepared, size, code), scale_factor=prepared.scale_factor)

    return step


# -- padding ----------------------------------------------------------------------------------------------------------


def _pad(
    size: Any = None,
    size_divisor: int | None = None,
    pad_to_square: bool = False,
    pad_val: Any = 0,
    padding_mode: str = 'constant',
) -> _Step:
    border = _choice(_BORDERS, 'padding_mode', padding_mode)
    value = pad_val.get('img', 0) if isinstance(pad_val, Mapping) else pad_val
    value = tuple(value) if isinstance(value, list) else value
    size = None if size is None else _pair(size, 'size')
    if size is None and size_divisor is None and not pad_to_square:
        raise ValueError('has neither size nor size_divisor nor pad_to_square')

    def step(prepared: Prepared) -> Prepared:
        height, width = prepared.shape
        target = (max(height, width),) * 2 if pad_to_square else (height, width)
        if size_divisor is not None:
            target = tuple(int(np.ceil(side / size_divisor)) * size_divisor for side in target)
        elif size is not None:
            target = size[::-1]
        below, right = (max(wanted - side, 0) for wanted, side in zip(target, (height, width), strict=True))
        image = prepared.image
        fill = (value,) * image.shape[2] if isinstance(value, int) and image.ndim == 3 else value
        return replace(prepared, image=cv2.copyMakeBorder(image, 0, below, 0, right, border, value=fill))

    return step


def _center_pad(
    crop_size: None = None,
    ratios: Any = None,
    border: Any = None,
    mean: Any = None,
    std: Any = None,
    to_rgb: bool | None = None,
    test_mode: bool = False,
    test_pad_mode: Any = ('logical_or', 127),
    test_pad_add_pix: int = 0,
    bbox_clip_border: bool = True,
) -> _Step:
    if not test_mode:
        raise ValueError('crops at random without test_mode=True')
    mode, number = test_pad_mode
    if mode not in ('logical_or', 'size_divisor'):
        raise ValueError(f"has test_pad_mode={test_pad_mode!r}; known are 'logical_or', 'size_divisor'")
    fill = tuple(mean)[::-1] if to_rgb else tuple(mean)

    def step(prepared: Prepared) -> Prepared:
        if prepared.image.dtype != np.float32:
            raise ImageError(f'{prepared.name}: RandomCenterCropPad needs LoadImageFromFile with to_float32=True')
        height, width = prepared.shape
        if mode == 'logical_or':
            target = [(side | number) + test_pad_add_pix for side in (height, width)]
        else:
            target = [int(np.ceil(side / number)) * number for side in (height, width)]
        image = np.zeros((*target, prepared.image.shape[2]), np.float32)
        image += np.array(fill, np.float32)
        # the middle on the middle; mmdet cuts off the last row where an odd side is padded to an even one
        tops = [side // 2 - min(side // 2, of // 2) for side, of in zip(target, (height, width), strict=True)]
        starts = [max(0, of // 2 - side // 2) for side, of in zip(target, (height, width), strict=True)]
        ends = [min(of // 2 + side // 2, of) for side, of in zip(target, (height, width), strict=True)]
        (top, left), (y0, x0), (y1, x1) = tops, starts, ends
        bottom, right = top + y1 - y0, left + x1 - x0
        image[top:bottom, left:right] = prepared.image[y0:y1, x0:x1]
        return replace(prepared, image=image, border=(float(top), float(bottom), float(left), float(right)))

    return step


_LOADERS = ('LoadImageFromFile', 'LoadImageFromNDArray')
_PACKERS = ('PackDetInputs', 'PackSegInputs')
_BUILDERS: dict[str, Callable[..., Any]] = {
    'LoadImageFromFile': _load,
    'LoadImageFromNDArray': _load,
    'Resize': _resize,
    'FixScaleResize': _fix_scale_resize,
    'FixShapeResize': _fix_shape_resize,
    'ResizeShortestEdge': _shortest_edge,
    'ResizeToMultiple': _to_multiple,
    'Pad': _pad,
    'RandomCenterCropPad': _center_pad,
    'PackDetInputs': _pack,
    'PackSegInputs': _pack,
}
