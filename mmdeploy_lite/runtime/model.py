"""A file as a function of an image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BackendError, ImageError
from .masks import paste_masks
from .pipeline import Pipeline, Prepared
from .preprocess import Preprocess
from .results import Detections, PanopticMap, SegMap
from .session import open_session

_AT_ONCE = 8  # images of a list, for files of any batch size: more would only take more memory

Image = str | Path | np.ndarray
Result = Detections | SegMap


class Model:
    """An exported file that answers images.

    All it needs to know stands in the file. Nothing in it changes once it is built: several threads may call it.

    Args:
        path: the ``.onnx`` file.
        providers: of ONNX Runtime, in order of preference.
        threads: for one operator; None leaves it to ONNX Runtime.
        backend: 'onnxruntime', or 'openvino', which takes no providers.

    Attributes:
        session: the file as a function of arrays; has the metadata.
        task: 'detection', 'instance_segmentation', 'panoptic' or 'segmentation'.
        classes: their names.
        palette: (r, g, b) of each class, 0-255.
        rescale: answers are in original pixels; else in those of the image as the pipeline leaves it.

    Raises:
        BackendError: no such file, not an ONNX file or a damaged one, not made by this package, or one whose inputs or
            outputs are for a program of your own.

    Example:
        >>> model = Model('model.onnx')
        >>> found = model('street.jpg')
        >>> found.bboxes, found.scores, found.names
    """

    def __init__(
        self,
        path: str | Path,
        providers: Sequence[str] = ('CPUExecutionProvider',),
        threads: int | None = None,
        backend: str = 'onnxruntime',
    ) -> None:
        self.session = open_session(path, providers, threads, backend)
        metadata = self.session.metadata
        try:
            self.task: str = metadata['task']
            self.classes: tuple[str, ...] = tuple(metadata['classes'])
            self.palette: list[tuple[int, int, int]] = [tuple(color) for color in metadata['palette']]
            self.rescale: bool = metadata['rescale']
            self._dtype = np.dtype(metadata['dtype'])
            steps, codebase = metadata['pipeline'], metadata['codebase']
        except (KeyError, TypeError) as error:
            raise BackendError(f'the metadata of {path} is not complete: {error}; export it again') from error
        self._preprocess = Preprocess(metadata['preprocess']) if metadata.get('input') == 'preprocessed' else None
        self._threshold: float = metadata['threshold'] if metadata.get('threshold') is not None else 0.5
        self._read = self._reader(path)
        if steps is None:
            raise BackendError(
                f'{path} was exported with deploy.input.runtime_pipeline=False: it does not say how to prepare an'
                ' image. Prepare its inputs yourself and run it with mmdeploy_lite.runtime.FileSession'
            )
        batch, channels, *self._size = self.session.input_shapes['image']
        self._fixed = isinstance(batch, int)
        self._batch = batch if self._fixed else _AT_ONCE
        self.pipeline = Pipeline(steps, codebase, channels if isinstance(channels, int) else 3)

    def __call__(self, images: Image | Sequence[Image]) -> Any:
        """Answer one image, or several.

        Args:
            images: a file, or (H, W, 3) uint8 BGR; or a list of these, which may differ in size.

        Returns:
            :class:`Detections`, :class:`SegMap` or :class:`PanopticMap`; for a list, a list of these in the same order.

        Raises:
            ImageError: no image, or one of a size that the file does not take.
            BackendError: ONNX Runtime failed.
        """
        if not isinstance(images, (list, tuple)):
            return self.run([self.prepare(images)])[0]
        results: list[Result] = []
        batch: list[Prepared] = []
        for image in images:
            prepared = self.prepare(image)
            if batch and (len(batch) == self._batch or not self._alike(batch[0], prepared)):
                results += self.run(batch)
                batch = []
            batch.append(prepared)
        return results + self.run(batch) if batch else results

    def prepare(self, image: Image) -> Prepared:
        """Run the pipeline on one image.

        Raises:
            ImageError: no image, or one of a size that the file does not take.
        """
        prepared = self.pipeline(image)
        if not self.takes(prepared.shape):
            fixed, got, original = (
                ' x '.join(map(str, size)) for size in (self._size, prepared.shape, prepared.ori_shape)
            )
            if self._too_small(prepared.shape):
                least = ' x '.join(map(str, self.session.least_size))
                raise ImageError(
                    f'{prepared.name} of {original} pixels comes out of the pipeline as {got}, the file takes'
                    f' {least} or larger, the size of its windows (height x width). Export with --shape for others'
                )
            reason = self.session.metadata.get('shapes', {}).get('reason', 'the size is fixed')
            raise ImageError(
                f'{prepared.name} of {original} pixels comes out of the pipeline as {got}, the file takes only {fixed}'
                f' (height x width; {reason}). Export with --shape, after which every image comes out the same'
            )
        return prepared

    def takes(self, shape: tuple[int, int]) -> bool:
        """Whether the file takes what the pipeline made of an image, (h, w) in pixels."""
        if self._preprocess is not None:
            shape = self._preprocess.padded(shape)
        if self._too_small(shape):
            return False
        return all(not isinstance(size, int) or size == got for size, got in zip(self._size, shape, strict=True))

    def _alike(self, one: Prepared, other: Prepared) -> bool:
        """Whether two images can be in one batch: masks and maps of one run have one size."""
        same = one.shape == other.shape
        return same and ('ori_shape' not in self.session.input_names or one.ori_shape == other.ori_shape)

    def _too_small(self, shape: tuple[int, int]) -> bool:
        return any(got < least for got, least in zip(shape, self.session.least_size, strict=True))

    def run(self, batch: Sequence[Prepared]) -> list[Result]:
        """Answer images that the pipeline has prepared: of one size, and of one original size.

        Args:
            batch: not more than a fixed batch size of the file, whose rest is filled up and dropped.

        Raises:
            BackendError: ONNX Runtime failed.
        """
        filled = [*batch, *[batch[0]] * (self._batch - len(batch))] if self._fixed else batch
        feeds = {
            'image': np.stack([self._tensor(item) for item in filled]).astype(self._dtype, copy=False),
            'img_shape': np.array([item.shape for item in filled], dtype=np.int64),
            'scale_factor': np.array([item.scale_factor for item in filled], dtype=np.float32),
            'ori_shape': np.array([item.ori_shape for item in filled], dtype=np.int64),
            'border': np.array([item.border for item in filled], dtype=np.float32),
        }
        outputs = self.session.run({name: feeds[name] for name in self.session.input_names})
        return [
            self._read(outputs, index, item.ori_shape if self.rescale else item.shape)
            for index, item in enumerate(batch)
        ]

    def _tensor(self, prepared: Prepared) -> np.ndarray:
        return prepared.tensor if self._preprocess is None else self._preprocess(prepared.tensor)

    def _reader(self, path: str | Path) -> Any:
        inputs, outputs = set(self.session.input_names), set(self.session.output_names)
        if {'dets', 'labels', 'num_dets'} <= outputs:
            read = self._detections
        elif 'seg_map' in outputs:
            read = self._seg_map
        elif 'panoptic_seg' in outputs:
            read = self._panoptic_map
        elif len(outputs & {'seg_logits', 'seg_probs'}) == 1:
            read = self._scores
        else:
            raise BackendError(
                f'{path} answers {", ".join(self.session.output_names)}; this reads dets, labels and num_dets, or'
                ' seg_map, seg_logits, seg_probs or panoptic_seg. Run it with mmdeploy_lite.runtime.FileSession'
            )
        if unknown := inputs - {'image', 'img_shape', 'scale_factor', 'ori_shape', 'border'}:
            raise BackendError(f'{path} takes {", ".join(sorted(unknown))}, which an image does not give')
        return read

    def _detections(self, outputs: dict[str, np.ndarray], index: int, shape: tuple[int, int]) -> Detections:
        count = int(outputs['num_dets'][index])
        dets = outputs['dets'][index, :count]
        masks = None
        if 'masks' in outputs:
            masks = outputs['masks'][index, :count].astype(bool)
        elif 'roi_masks' in outputs:
            masks = paste_masks(outputs['roi_masks'][index, :count], dets[:, :4], shape, self._threshold)
        return Detections(dets[:, :4], dets[:, 4], outputs['labels'][index, :count], masks, shape, self.classes)

    def _seg_map(self, outputs: dict[str, np.ndarray], index: int, shape: tuple[int, int]) -> SegMap:
        return SegMap(outputs['seg_map'][index], shape, self.classes)

    def _panoptic_map(self, outputs: dict[str, np.ndarray], index: int, shape: tuple[int, int]) -> PanopticMap:
        return PanopticMap.of(outputs['panoptic_seg'][index], shape, self.classes)

    def _scores(self, outputs: dict[str, np.ndarray], index: int, shape: tuple[int, int]) -> SegMap:
        (scores,) = (outputs[name][index] for name in ('seg_logits', 'seg_probs') if name in outputs)
        labels = scores.argmax(axis=0) if len(scores) > 1 else scores[0] > self._threshold
        return SegMap(labels.astype(np.int64), shape, self.classes, scores)
