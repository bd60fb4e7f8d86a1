"""The config's own test pipeline, run on one image."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mmengine.config import Config
from torch import Tensor

from ..errors import ConfigError, UnsupportedError

_LOADERS = ('LoadImageFromFile', 'LoadImageFromNDArray', 'InferencerLoader', 'LoadMultiChannelImageFromFiles')


def find_test_pipeline(cfg: Config) -> list[dict[str, Any]]:
    """The test pipeline of a model config, without the steps that load annotations.

    Args:
        cfg: the model config; looks in ``test_dataloader`` (through dataset wrappers), then ``test_pipeline``.

    Raises:
        ConfigError: there is none.
        UnsupportedError: test-time augmentation, which makes several images of one.
    """
    dataset = (cfg.get('test_dataloader') or cfg.get('val_dataloader') or {}).get('dataset') or {}
    while 'pipeline' not in dataset and ('dataset' in dataset or 'datasets' in dataset):
        dataset = dataset.get('dataset') or dataset['datasets'][0]
    pipeline = dataset.get('pipeline') or cfg.get('test_pipeline')
    if not pipeline:
        raise ConfigError(
            'the config has no test pipeline: neither test_dataloader.dataset.pipeline nor test_pipeline.'
            ' Add the one the model was tested with'
        )
    steps = [copy.deepcopy(dict(step)) for step in pipeline if not _name(step).startswith(('LoadAnno', 'LoadPanoptic'))]
    for step in steps:
        if _name(step) in ('TestTimeAug', 'MultiScaleFlipAug'):
            raise UnsupportedError(
                f'the test pipeline has {step["type"]}: test-time augmentation makes several images of one and cannot'
                ' be one graph. Deploy with the plain test pipeline'
            )
    return steps


def _name(step: Mapping[str, Any]) -> str:
    kind = step['type']
    return (kind if isinstance(kind, str) else kind.__name__).split('.')[-1]


def fix_shape(steps: Sequence[Mapping[str, Any]], shape: tuple[int, int]) -> list[dict[str, Any]]:
    """Change a pipeline's Resize and Pad so that every image comes out as ``shape``.

    With a ``Pad`` in the pipeline and a square shape, the aspect ratio is kept and the rest padded, as the pipeline
    does. Otherwise the image is resized to the shape: the libraries' ``keep_ratio`` takes the scale for the longer and
    the shorter side, whichever way the image lies, so a portrait would not fit a landscape shape. Steps of other kinds
    stay.

    Args:
        steps: the test pipeline.
        shape: (h, w) in pixels.
    """
    height, width = shape
    letterbox = height == width and any(_name(step) == 'Pad' for step in steps)
    fixed, resized = [], False
    for step in steps:
        step, name = dict(step), _name(step)
        if name in ('Resize', 'RandomResize', 'FixShapeResize', 'ResizeShortestEdge', 'ResizeToMultiple'):
            if resized:
                continue
            keep = {key: step[key] for key in ('interpolation', 'backend') if key in step}
            step = dict(type='Resize', scale=(width, height), keep_ratio=letterbox, **keep)
            resized = True
        elif name == 'Pad':
            step = {key: value for key, value in step.items() if key in ('type', 'pad_val', 'padding_mode')}
            step['size'] = (width, height)
        fixed.append(step)
    if not resized:
        loader = next((index for index, step in enumerate(fixed) if _name(step) in _LOADERS), -1)
        fixed.insert(loader + 1, dict(type='Resize', scale=(width, height), keep_ratio=letterbox))
    return fixed


class TestPipeline:
    """Runs a test pipeline on images given as files or arrays.

    Args:
        steps: of the test pipeline; see :func:`find_test_pipeline`.

    Raises:
        ConfigError: a step that is not registered, or cannot be built.
    """

    __test__ = False  # pytest collects classes of this name otherwise

    def __init__(self, steps: Sequence[Mapping[str, Any]]) -> None:
        from mmengine.dataset import Compose

        self.steps = [dict(step) for step in steps]
        # every image is given as an array: what the file holds has been read, and changed images need no file
        runnable = [dict(step, type='LoadImageFromNDArray') if _name(step) in _LOADERS else step for step in self.steps]
        for step in runnable:
            if step['type'] == 'LoadImageFromNDArray':
                for key in [key for key in step if key not in ('type', 'to_float32')]:
                    del step[key]
        try:
            self._compose = Compose(runnable)
        except (KeyError, TypeError) as error:
            raise ConfigError(f'the test pipeline cannot be built: {str(error).splitlines()[0]}') from error

    @property
    def transforms(self) -> list[Any]:
        """The steps as they run, built."""
        return list(self._compose.transforms)

    def __call__(self, image: np.ndarray, path: str = '') -> tuple[Tensor, Any]:
        """Run the steps.

        Args:
            image: (H, W, 3) uint8 BGR, original pixels.
            path: where it came from, for the data sample.

        Returns:
            The image as the pipeline leaves it, (C, h, w), and its data sample.

        Raises:
            UnsupportedError: the pipeline returns several images, or none.
        """
        data = self._compose(dict(img=image, img_id=0, img_path=path or None))
        inputs = None if data is None else data.get('inputs')
        if not isinstance(inputs, Tensor) or inputs.dim() != 3:
            raise UnsupportedError(
                f'the test pipeline makes {type(inputs).__name__} of an image; one (C, H, W) tensor is needed'
            )
        return inputs, data['data_samples']
