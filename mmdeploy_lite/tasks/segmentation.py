"""Semantic segmentation with mmseg, whole and slide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..check.answers import SegEvidence, SegMap
from ..check.compare import compare_seg_map
from ..check.comparison import Comparison
from ..check.tolerance import Tolerance
from ..registry import TASKS
from .base import BaseTask, ModelWrapper, Sample


class SegmentationWrapper(ModelWrapper):
    """``predict`` of a segmentor as a function of the file's inputs."""

    def forward(self, image: Tensor, *extra: Tensor) -> Tensor:
        """Predict.

        Args:
            image: (N, C, H, W) as the test pipeline leaves it.
            *extra: those that the file has of ``img_shape`` (N, 2) int64 (h, w), see :meth:`prepare`, and ``ori_shape``
                (N, 2) int64 (h, w) that the logits are resized to before argmax; else the image's own size.

        Returns:
            ``seg_map`` (N, h, w) int64.
        """
        from mmseg.structures import SegDataSample

        given = dict(zip(self.input_names[1:], extra, strict=True))
        ori_shape = given.get('ori_shape')
        inputs, sizes, (padded_h, padded_w) = self.prepare(image, given.get('img_shape'))
        samples = []
        for index, (height, width) in enumerate(sizes):
            original = (height, width) if ori_shape is None else (ori_shape[index, 0], ori_shape[index, 1])
            padding = (0, 0) if height is padded_h and width is padded_w else (padded_w - width, padded_h - height)
            samples.append(
                self.set_metainfo(
                    SegDataSample(),
                    img_shape=(height, width),
                    pad_shape=(padded_h, padded_w),
                    img_padding_size=(0, padding[0], 0, padding[1]),
                    ori_shape=original,
                )
            )
        return self.read(self.model.predict(inputs, samples))

    def read(self, results: list[Any]) -> Tensor:
        """The file's output, of the data samples that ``predict`` returned."""
        return torch.cat([result.pred_sem_seg.data for result in results]).long()


@TASKS.register_module()
class SemanticSegmentation(BaseTask):
    """A class for every pixel."""

    name = 'segmentation'
    kind = 'seg_map'
    outputs = 'seg_map'
    codebase = 'mmseg'
    default_deploy_cfg = 'mmseg/segmentation_onnxruntime.py'
    needs_ori_shape = True
    sizes_follow_image = True

    def __init__(self, model: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(model, *args, **kwargs)
        self.notes += fix_random_bases(model)

    def output_shapes(self) -> dict[str, tuple[int | str, ...]]:
        return {'seg_map': (self.batch_size, 'map_height', 'map_width')}

    @property
    def least_size(self) -> tuple[int, int]:
        windows = self.model.test_cfg.get('crop_size') if self.slides else None
        return tuple(windows) if isinstance(windows, (tuple, list)) and len(windows) == 2 else (1, 1)

    @property
    def slides(self) -> bool:
        """The test config says slide mode."""
        return self.model.test_cfg.get('mode', 'whole') == 'slide'

    def wrapper(self) -> SegmentationWrapper:
        return SegmentationWrapper(self.model, self.in_graph(), self.rescale, self.input_names)

    def reference(self, sample: Sample) -> tuple[SegMap, SegEvidence]:
        result = self.test_step(sample)
        undecided = undecided_pixels(result.seg_logits.data, self.threshold, self.tolerance.mask)
        double = self.lazily(sample, lambda item: self._read(item).seg_map)
        return self._read(result), SegEvidence(undecided, double, lambda: self._unstable(sample, result))

    def _unstable(self, sample: Sample, result: Any) -> np.ndarray:
        """Where PyTorch's own answer hangs on the rounding of the image, as it does behind attention that a threshold
        masks (Mask2Former): (H, W) bool.
        """
        logits = result.seg_logits.data
        moved = torch.zeros_like(logits[0])
        for other in self.moved_answers(sample, lambda item: item.seg_logits.data):
            moved = torch.maximum(moved, (other - logits).abs().amax(dim=0))
        # the backend moves as much as PyTorch does, and not the same way
        return _gaps(logits, self.threshold).le(2 * moved).cpu().numpy()

    def answer(self, outputs: Mapping[str, np.ndarray], index: int = 0) -> SegMap:
        return SegMap(outputs['seg_map'][index])

    def compare(
        self, sample: Sample, reference: SegMap, answer: SegMap, tolerance: Tolerance, evidence: Any
    ) -> Comparison:
        return compare_seg_map(reference, answer, tolerance, evidence, num_classes=self.num_classes)

    def data_sample(self, sample: Sample, answer: SegMap) -> Any:
        from ..check.visualize import segmentation_sample

        return segmentation_sample(answer)

    def _predict(self, model: Any, inputs: Tensor, data_samples: list[Any]) -> list[Any]:
        if not self.rescale:
            for sample in data_samples:
                sample.set_metainfo(dict(ori_shape=sample.img_shape))
        return model.predict(inputs, data_samples)

    @property
    def threshold(self) -> float:
        return float(getattr(getattr(self.model, 'decode_head', None), 'threshold', None) or 0.5)

    @staticmethod
    def _read(data_sample: Any) -> SegMap:
        return SegMap(data_sample.pred_sem_seg.data[0].long().cpu().numpy())


def fix_random_bases(model: torch.nn.Module, seed: int = 0) -> list[str]:
    """Draw the bases of a matrix decomposition once, in place, where the model draws new ones at every call.

    SegNeXt's head (https://arxiv.org/abs/2209.08575) starts its iterations from random bases, so PyTorch answers the
    same image differently every time; with ``rand_init=False`` mmseg itself draws them at the first call and keeps
    them.

    Args:
        model: of mmseg.
        seed: of the bases.

    Returns:
        What was done, in words; nothing for other models.
    """
    fixed = []
    for name, module in model.named_modules():
        if type(module).__name__ != 'Hamburger' or hasattr(module.ham, 'bases'):
            continue
        ham, conv = module.ham, module.ham_in.conv
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            bases = ham._build_bases(1, ham.S, conv.out_channels // ham.S, ham.R, device=conv.weight.device)
        ham.register_buffer('bases', bases, persistent=False)
        ham.rand_init = False
        fixed.append(
            f"'{name}' draws random bases at every call, so PyTorch's own answers differ from call to call; the file"
            f' has bases drawn once (seed {seed}), and PyTorch was given the same for the comparison'
        )
    return fixed


def undecided_pixels(logits: Tensor, threshold: float, tolerance: float) -> np.ndarray:
    """Where PyTorch itself is undecided within ``tolerance`` of the logits' range.

    Args:
        logits: (C, H, W); of one channel, what mmseg keeps is the probability.
        threshold: of a single channel.
        tolerance: part of the range.

    Returns:
        (H, W) bool.
    """
    scale = 1.0 if logits.shape[0] == 1 else logits.max() - logits.min()
    return (_gaps(logits, threshold) <= tolerance * scale).cpu().numpy()


def _gaps(logits: Tensor, threshold: float) -> Tensor:
    """(H, W) how far each pixel is from another class."""
    if logits.shape[0] == 1:
        return (logits[0] - threshold).abs()
    best = logits.topk(2, dim=0)[0]
    return best[0] - best[1]
