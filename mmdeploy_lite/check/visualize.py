"""PyTorch and the backend side by side, each drawn by the library's own visualizer.

The model libraries are imported when something is drawn or built, not with this module.
"""

from __future__ import annotations

import colorsys
import contextlib
import importlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from mmdeploy_lite.check.answers import Detections, SegMap
from mmdeploy_lite.errors import WorkDirError

SCORE_THR = 0.3
"""Detections below are not drawn, as mmdet does; the title says how many there are in all."""

_MAX_SIDE, _MIN_WIDTH = 1600, 400
"""Each half is scaled into these limits (pixels): text on a 97 px image cannot be read, matplotlib is slow on 12 MP."""


def detection_sample(answer: Detections) -> Any:
    """Build an mmdet ``DetDataSample`` with ``pred_instances`` from an answer."""
    structures = _library('mmdet.structures')
    import torch
    from mmengine.structures import InstanceData

    instances = InstanceData(
        bboxes=torch.from_numpy(np.asarray(answer.bboxes, np.float32)),
        scores=torch.from_numpy(np.asarray(answer.scores, np.float32)),
        labels=torch.from_numpy(np.asarray(answer.labels, np.int64)),
    )
    if answer.masks is not None:
        instances.masks = torch.from_numpy(np.asarray(answer.masks, bool))
    return structures.DetDataSample(pred_instances=instances)


def segmentation_sample(answer: SegMap) -> Any:
    """Build an mmseg ``SegDataSample`` with ``pred_sem_seg`` from an answer."""
    structures = _library('mmseg.structures')
    import torch
    from mmengine.structures import PixelData

    data = torch.from_numpy(np.asarray(answer.classes, np.int64))[None]
    return structures.SegDataSample(pred_sem_seg=PixelData(data=data))


def save_comparison(
    path: str | os.PathLike[str],
    image: np.ndarray,
    reference_sample: Any,
    backend_sample: Any,
    dataset_meta: Mapping[str, Any] | None,
    task: str,
    *,
    score_thr: float = SCORE_THR,
    titles: Sequence[str] = ('PyTorch', 'ONNX Runtime'),
) -> None:
    """Write a PNG with both answers side by side, under a title each. Needs no display.

    Args:
        path: File to write.
        image: (H, W, 3) uint8, BGR, in whose pixels the boxes are. Masks and maps of another size are drawn over the
            image resized to theirs.
        reference_sample: PyTorch's answer, a ``DetDataSample`` or ``SegDataSample`` with predictions.
        backend_sample: The backend's answer, of the same kind.
        dataset_meta: ``classes`` and ``palette`` of the model; what is missing falls back to numbers and to
            colours of our own.
        task: The task's name; one that ends with ``segmentation`` and has no instances is drawn by mmseg.
        score_thr: Detections below are not drawn. When PyTorch has none above, its 20 best are.
        titles: What to call the two.

    Raises:
        WorkDirError: The file cannot be written.
    """
    with _quiet():
        picture = _side_by_side(image, reference_sample, backend_sample, dataset_meta, task, score_thr, titles)
    try:
        # Not cv2.imwrite: it fails silently on paths it cannot encode.
        Path(path).write_bytes(picture)
    except OSError as error:
        raise WorkDirError(f'cannot write the picture {path}: {error.strerror or error}') from error


def _side_by_side(
    image: np.ndarray,
    reference_sample: Any,
    backend_sample: Any,
    dataset_meta: Mapping[str, Any] | None,
    task: str,
    score_thr: float,
    titles: Sequence[str],
) -> bytes:
    """The picture of :func:`save_comparison` as the bytes of a PNG."""
    import cv2

    segmentation = task == 'panoptic' or task.endswith('segmentation') and 'pred_instances' not in reference_sample
    draw = _draw_segmentation if segmentation else _draw_detections
    meta = _complete_meta(dataset_meta, (reference_sample, backend_sample), segmentation)
    if not segmentation:
        score_thr = _visible(reference_sample, score_thr)
    halves = []
    for sample, title in zip((reference_sample, backend_sample), titles, strict=True):
        # Both sides draw the same random numbers: mmdet jitters the colours of masks.
        np.random.seed(0)
        half = draw(image, sample, meta, score_thr)
        if not segmentation:
            count = len(sample.pred_instances)
            title += f': {count} detection' + ('' if count == 1 else 's') + f', shown from score {score_thr:.2g}'
        halves.append(_titled(half, title))
    height = max(len(half) for half in halves)
    halves = [cv2.copyMakeBorder(half, 0, height - len(half), 0, 0, cv2.BORDER_CONSTANT) for half in halves]
    gap = np.full((height, 6, 3), 255, np.uint8)
    done, data = cv2.imencode('.png', np.concatenate([halves[0], gap, halves[1]], axis=1))
    assert done
    return data.tobytes()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No warning of the visualizers, as of text that begins outside the image; the random state is left alone."""
    state = np.random.get_state()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            yield
    finally:
        np.random.set_state(state)


def _library(name: str) -> ModuleType:
    """Import a module of mmdet or mmseg: after the stand-ins for mmcv's operators, and without torch's deprecations."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        importlib.import_module('mmdeploy_lite.ops')
        return importlib.import_module(name)


def _array(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def _draw_detections(image: np.ndarray, sample: Any, meta: dict[str, Any], score_thr: float) -> np.ndarray:
    """Draw with mmdet; (H, W, 3) uint8 BGR."""
    instances = sample.pred_instances
    boxes, labels = _array(instances.bboxes), _array(instances.labels)
    scores = _array(instances.scores)
    masks = _array(instances.masks).astype(bool) if 'masks' in instances else None
    size = image.shape[:2] if masks is None else masks.shape[1:]
    canvas, factor = _canvas(image, size)
    height, width = canvas.shape[:2]
    # The visualizer stops at what only a faulty answer holds: that answer still deserves its picture.
    shown = np.isfinite(boxes).all(axis=1) & np.isfinite(scores) & (labels >= 0)
    boxes, labels, scores = boxes[shown] * factor, labels[shown], scores[shown]
    boxes = np.concatenate([np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])], axis=1)
    boxes = boxes.clip(0, np.array([width, height, width, height], np.float32) - 1)
    if masks is not None:
        masks = np.stack([_resized(mask.astype(np.uint8), canvas) for mask in masks[shown]]) if shown.any() else None
    visualizer = _library('mmdet.visualization').DetLocalVisualizer(name='mmdeploy_lite_compare', line_width=2)
    visualizer.dataset_meta = meta
    drawn = detection_sample(Detections(boxes, scores, labels, None if masks is None else masks.astype(bool)))
    visualizer.add_datasample('compare', canvas[..., ::-1], drawn, draw_gt=False, pred_score_thr=score_thr)
    return np.ascontiguousarray(visualizer.get_image()[..., ::-1])


def _draw_segmentation(image: np.ndarray, sample: Any, meta: dict[str, Any], score_thr: float) -> np.ndarray:
    """Draw with mmseg; (H, W, 3) uint8 BGR."""
    seg_map = _array(sample.pred_sem_seg.data)[0].astype(np.int64)
    canvas, _ = _canvas(image, seg_map.shape)
    # Resized as uint16: nearest neighbour in OpenCV knows no int64, and 255 or -1 are no classes to draw.
    seg_map = _resized(np.where(seg_map < 0, 65535, seg_map).astype(np.uint16), canvas).astype(np.int64)
    visualizer = _library('mmseg.visualization').SegLocalVisualizer(name='mmdeploy_lite_compare', alpha=0.6)
    # Not to the constructor: mmseg 1.2 takes the classes for the palette there.
    visualizer.dataset_meta = meta
    drawn = segmentation_sample(SegMap(seg_map))
    visualizer.add_datasample('compare', canvas[..., ::-1], drawn, draw_gt=False)
    return np.ascontiguousarray(visualizer.get_image()[..., ::-1])


def _canvas(image: np.ndarray, size: Sequence[int]) -> tuple[np.ndarray, float]:
    """The image to draw on, for an answer in pixels of ``size`` (h, w), and what brings these to its pixels."""
    import cv2

    height, width = size
    factor = min(max(1.0, _MIN_WIDTH / width), _MAX_SIDE / max(height, width))
    target = (max(1, round(width * factor)), max(1, round(height * factor)))
    if target == (image.shape[1], image.shape[0]):
        return image.copy(), factor
    smaller = target[0] < image.shape[1]
    return cv2.resize(image, target, interpolation=cv2.INTER_AREA if smaller else cv2.INTER_LINEAR), factor


def _resized(values: np.ndarray, canvas: np.ndarray) -> np.ndarray:
    """(H, W) labels at the canvas' size, nearest neighbour."""
    import cv2

    return cv2.resize(values, canvas.shape[1::-1], interpolation=cv2.INTER_NEAREST)


def _visible(sample: Any, score_thr: float) -> float:
    """A threshold that leaves something to see: lower when PyTorch has nothing above."""
    scores = np.sort(_array(sample.pred_instances.scores))[::-1]
    if not len(scores) or scores[0] > score_thr:
        return score_thr
    # A little below, so that rounding does not decide which side shows its last one.
    return float(scores[min(len(scores), 20) - 1]) * 0.999


def _complete_meta(
    dataset_meta: Mapping[str, Any] | None, samples: Sequence[Any], segmentation: bool
) -> dict[str, Any]:
    """Classes and palette that cover every label on either side, also those that a faulty answer made up."""
    meta = dict(dataset_meta or {})
    classes = [str(name) for name in meta.get('classes') or ()]
    palette = meta.get('palette')
    palette = [tuple(int(part) for part in color) for color in palette] if isinstance(palette, (list, tuple)) else []
    highest = len(classes) - 1
    for sample in samples:
        labels = sample.pred_sem_seg.data if segmentation else sample.pred_instances.labels
        labels = labels[(labels >= 0) & (labels != 255)] if segmentation else labels
        highest = max(highest, int(labels.max()) if labels.numel() else -1)
    classes += [f'class {label}' for label in range(len(classes), highest + 1)]
    if len(palette) < len(classes):
        palette += _distinct_colors(len(classes))[len(palette) :]
    return dict(classes=classes, palette=palette[: len(classes)])


def _distinct_colors(count: int) -> list[tuple[int, int, int]]:
    """Colours far from one another."""
    hues = [(0.61803398875 * label) % 1 for label in range(count)]
    return [tuple(int(255 * part) for part in colorsys.hsv_to_rgb(hue, 0.75, 0.95)) for hue in hues]


def _titled(image: np.ndarray, title: str) -> np.ndarray:
    """Put a bar with a title above an image."""
    import cv2

    height, scale = 32, 0.6
    (width, _), _ = cv2.getTextSize(title, cv2.FONT_HERSHEY_SIMPLEX, scale, 1)
    scale *= min(1, (image.shape[1] - 16) / width)
    bar = np.full((height, image.shape[1], 3), 40, np.uint8)
    cv2.putText(bar, title, (8, 22), cv2.FONT_HERSHEY_SIMPLEX, scale, (255, 255, 255), 1, cv2.LINE_AA)
    return np.concatenate([bar, image])
