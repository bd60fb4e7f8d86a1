"""What every task has in common."""

from __future__ import annotations

import abc
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ..check.comparison import Comparison
from ..check.tolerance import Tolerance
from ..errors import UnsupportedError
from ..export.preprocess import InGraphPreprocess, PreprocessSpec
from ..export.shapes import python_shape, static_size
from .pipeline import TestPipeline


@dataclass
class Sample:
    """One image as the test pipeline leaves it.

    Attributes:
        name: for reports.
        image: (H, W, 3) uint8 BGR, original pixels.
        inputs: (C, h, w) as the pipeline leaves it, before the data preprocessor.
        data_sample: the library's data sample, with ``scale_factor``, ``ori_shape``, ``img_shape``.
    """

    name: str
    image: np.ndarray
    inputs: Tensor
    data_sample: Any

    @property
    def shape(self) -> tuple[int, int]:
        """(h, w) of ``inputs``."""
        return int(self.inputs.shape[1]), int(self.inputs.shape[2])


class ModelWrapper(nn.Module):
    """The model as a function of the file's inputs, which is what gets traced.

    Args:
        model: of mmdet or mmseg, in eval mode.
        preprocess: the in-graph data preprocessor; None where ``image`` is the network's own input already.
        rescale: answers in original pixels, else in ``image`` pixels.
        input_names: of what ``forward`` takes, in order.
    """

    def __init__(
        self, model: nn.Module, preprocess: nn.Module | None, rescale: bool, input_names: Sequence[str] = ('image',)
    ) -> None:
        super().__init__()
        self.model = model
        self.preprocess = preprocess
        self.rescale = rescale
        self.input_names = list(input_names)

    def prepare(self, image: Tensor, img_shape: Tensor | None = None) -> tuple[Tensor, list[tuple[Any, Any]], Any]:
        """The network's input and its sizes: Python ints, or traced where height and width are dynamic.

        Args:
            image: (N, C, H, W), see ``input.preprocess`` of the deploy config.
            img_shape: (N, 2) int64 (h, w) of the part of ``image`` that is no padding; None where all of it is image.

        Returns:
            The network's input, (h, w) of each image in it, and (h, w) with the padding below and right.
        """
        height, width = static_size(image) or image.shape[-2:]
        count = python_shape(image)[0]
        if img_shape is not None:
            return image, [(img_shape[index, 0], img_shape[index, 1]) for index in range(count)], (height, width)
        if self.preprocess is None:
            return image, [(height, width)] * count, (height, width)
        inputs, (pad_h, pad_w) = self.preprocess(image)
        # without padding the very same objects, so that the libraries' comparisons of the sizes are no traced branches
        padded = (height, width)
        if not (isinstance(pad_h, int) and isinstance(pad_w, int) and pad_h == pad_w == 0):
            padded = (height + pad_h, width + pad_w)
        return inputs, [(height, width)] * count, padded

    @staticmethod
    def set_metainfo(data_sample: Any, **metainfo: Any) -> Any:
        """Set metainfo without the deep copy that ``set_metainfo`` makes: a deep-copied traced value silently becomes
        zero.
        """
        for name, value in metainfo.items():
            data_sample.set_field(name=name, value=value, field_type='metainfo', dtype=None)
        return data_sample


class BaseTask(abc.ABC):
    """What a kind of model takes and answers.

    Args:
        model: of mmdet or mmseg, in eval mode.
        pipeline: its test pipeline.
        rescale: answers in original pixels; False drops ``scale_factor`` and ``ori_shape`` and answers in ``image``
            pixels.
        dtype: of the ``image`` input, 'float32' or 'uint8'.
        batch_size: images per run, fixed in the graph; None for any number.
        preprocess: 'graph': the data preprocessor's work is in the graph. 'none': ``image`` is what it leaves, and
            where it pads, the input ``img_shape`` says how much of it is image.
        tolerance: within which PyTorch counts as undecided; None for the defaults.
    """

    name: ClassVar[str]
    kind: ClassVar[str]
    codebase: ClassVar[str]
    default_deploy_cfg: ClassVar[str]
    runtime_reads: ClassVar[bool] = True
    pastes: ClassVar[bool] = True
    """Masks over boxes are pasted into the image in the graph."""
    wants_logits: ClassVar[bool] = False
    """The scores of all classes are an output."""
    outputs: ClassVar[str]  # the choice of the deploy config that it answers
    needs_ori_shape: ClassVar[bool] = False
    needs_scale_factor: ClassVar[bool] = False
    sizes_follow_image: ClassVar[bool] = False
    """Up to the post-processing, every size in the model follows from the image's, none from its content."""

    def __init__(
        self,
        model: nn.Module,
        pipeline: TestPipeline,
        rescale: bool = True,
        dtype: str = 'float32',
        batch_size: int | None = 1,
        tolerance: Tolerance | None = None,
        preprocess: str = 'graph',
    ) -> None:
        if preprocess not in ('graph', 'none'):
            raise UnsupportedError(f"input preprocess '{preprocess}' is not supported; use 'graph' or 'none'")
        if preprocess == 'none' and dtype != 'float32':
            raise UnsupportedError(
                f"input preprocess 'none' takes what the data preprocessor leaves, which is float32, not {dtype}"
            )
        if dtype not in ('float32', 'uint8'):
            raise UnsupportedError(f"input dtype '{dtype}' is not supported; use 'float32' or 'uint8'")
        self.model = model
        self.pipeline = pipeline
        self.rescale = rescale
        self.dtype = dtype
        self.dynamic_batch = batch_size is None
        self.batch_size = batch_size or 1  # that is traced
        self.tolerance = tolerance or Tolerance()
        self.preprocess = preprocess
        self.preprocess_spec = PreprocessSpec.of(model.data_preprocessor)
        self.notes: list[str] = []
        """What users should know of how the model is deployed."""
        self._double: nn.Module | None = None

    @property
    def threshold(self) -> float | None:
        """Of a single channel of probabilities; None where there is none."""
        return None

    @property
    def input_names(self) -> list[str]:
        """Of the graph, in order."""
        names = ['image']
        if self.preprocess == 'none' and self.preprocess_spec.pads:
            names.append('img_shape')
        if self.rescale:
            names += ['scale_factor'] * self.needs_scale_factor + ['ori_shape'] * self.needs_ori_shape
        return names

    @abc.abstractmethod
    def output_shapes(self) -> dict[str, tuple[int | str, ...]]:
        """Per output, in order, its sizes: numbers where fixed, names where they change from run to run."""

    def file_shapes(self) -> dict[str, tuple[int | str, ...]]:
        """:meth:`output_shapes` of the finished file."""
        shapes = self.output_shapes()
        return {name: ('batch', *dims[1:]) for name, dims in shapes.items()} if self.dynamic_batch else shapes

    def nms_configs(self) -> list[str]:
        """Where the test config asks for NMS."""
        from ..rewriters.mmcv_ops import find_nms_configs

        return list(find_nms_configs(getattr(self.model, 'test_cfg', None)))

    @property
    def least_size(self) -> tuple[int, int]:
        """(h, w) in pixels that a file of any size takes at least."""
        return 1, 1

    @property
    def num_classes(self) -> int | None:
        """Labels are below it; None when the model does not say."""
        from ..loading.dataset_meta import count_classes

        return count_classes(self.model)

    def prepare(self, name: str, image: np.ndarray) -> Sample:
        """Run the test pipeline on an image ((H, W, 3) uint8 BGR)."""
        inputs, data_sample = self.pipeline(image, name)
        if self.dtype == 'uint8' and inputs.dtype != torch.uint8:
            raise UnsupportedError(
                f'the test pipeline leaves {inputs.dtype} images, which a uint8 input cannot take; use dtype="float32"'
            )
        return Sample(name, image, inputs, data_sample)

    def feeds(self, samples: list[Sample]) -> dict[str, np.ndarray]:
        """The graph's inputs for a batch of images of one size."""
        metas = [sample.data_sample.metainfo for sample in samples]
        images = torch.stack([sample.inputs for sample in samples])
        if self.preprocess == 'none':
            images = self.preprocessed(samples)
        feeds = {'image': images.numpy().astype(self.dtype)}
        if 'img_shape' in self.input_names:
            feeds['img_shape'] = np.array([sample.shape for sample in samples], dtype=np.int64)
        if 'scale_factor' in self.input_names:
            factors = [meta.get('scale_factor', (1.0, 1.0))[:2] for meta in metas]
            feeds['scale_factor'] = np.array(factors, dtype=np.float32)
        if 'ori_shape' in self.input_names:
            feeds['ori_shape'] = np.array([meta['ori_shape'][:2] for meta in metas], dtype=np.int64)
        return feeds

    def preprocessed(self, samples: list[Sample]) -> Tensor:
        """(N, C, H, W) float32, as the model's own data preprocessor leaves them."""
        data = dict(
            inputs=[sample.inputs for sample in samples],
            data_samples=[copy.deepcopy(sample.data_sample) for sample in samples],
        )
        return self.model.data_preprocessor(data, False)['inputs'].cpu()

    def in_graph(self) -> InGraphPreprocess | None:
        """What the graph does to ``image`` first."""
        return InGraphPreprocess(self.preprocess_spec) if self.preprocess == 'graph' else None

    def fit_together(self, first: Sample, second: Sample) -> bool:
        """Whether two images can be in one batch: of one size, and, where the original size counts, answered in one."""
        same = first.shape == second.shape
        return same and ('ori_shape' not in self.input_names or first.image.shape == second.image.shape)

    @abc.abstractmethod
    def wrapper(self) -> ModelWrapper:
        """The module to trace: takes the inputs in order, returns the outputs in order."""

    @abc.abstractmethod
    def reference(self, sample: Sample) -> tuple[Any, Any]:
        """PyTorch's answer for one image, and the evidence of how sure it is."""

    @abc.abstractmethod
    def answer(self, outputs: Mapping[str, np.ndarray], index: int = 0) -> Any:
        """The backend's outputs for image ``index`` of the batch in the form of :meth:`reference`'s answer."""

    @abc.abstractmethod
    def compare(self, sample: Sample, reference: Any, answer: Any, tolerance: Tolerance, evidence: Any) -> Comparison:
        """Compare an answer with the reference of the same image."""

    @abc.abstractmethod
    def data_sample(self, sample: Sample, answer: Any) -> Any:
        """An answer as the library's data sample, for its visualizer."""

    def test_step(self, sample: Sample, double: bool = False, model: nn.Module | None = None) -> Any:
        """The library's own answer for one image: data preprocessor and ``predict``.

        Args:
            sample: the image.
            double: run the network in float64.
            model: in place of the task's own.

        Returns:
            The library's data sample with the predictions.
        """
        model = model or self.model
        with torch.no_grad():
            data = dict(inputs=[sample.inputs], data_samples=[copy.deepcopy(sample.data_sample)])
            data = model.data_preprocessor(data, False)
            inputs, samples = data['inputs'], data['data_samples']
            if double:
                model, inputs = self.double_model(), inputs.double()
            return self._predict(model, inputs, samples)[0]

    def moved_answers(self, sample: Sample, read: Callable[[Any], Any], runs: int = 8) -> Iterator[Any]:
        """PyTorch's answers where less than a rounding is moved: where they differ, it is undecided.

        Moved are the image and, in every second run, the weights too: an image's rounding is one, and another order of
        sums rounds in every layer.

        Args:
            sample: the image.
            read: takes what is needed from the library's data sample.
            runs: how many answers.
        """
        generator = torch.Generator().manual_seed(0)
        for run in range(runs):
            # of pixels 0-255, whose float32 is no finer
            noise = 1e-5 * torch.randn(sample.inputs.shape, generator=generator)
            moved = dataclasses.replace(sample, inputs=sample.inputs.float() + noise)
            yield read(self.test_step(moved, model=_rounded_otherwise(self.model, generator) if run % 2 else None))

    def double_model(self) -> nn.Module:
        """The model in float64, copied on the first call."""
        if self._double is None:
            self._double = copy.deepcopy(self.model).double()
        return self._double

    def _predict(self, model: nn.Module, inputs: Tensor, data_samples: list[Any]) -> list[Any]:
        return model.predict(inputs, data_samples)

    def lazily(self, sample: Sample, read: Callable[[Any], Any]) -> Callable[[], Any]:
        """The float64 answer of one image, run when it is asked for; None where the model cannot run in float64."""

        def run() -> Any:
            try:
                return read(self.test_step(sample, double=True))
            except RuntimeError:  # an operator without a float64 kernel, or a dtype fixed in the model's code
                return None

        return run


def _rounded_otherwise(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """A copy of a model whose weights are the numbers next to its own, or its own."""
    moved = copy.deepcopy(model)
    for weight in moved.parameters():
        half = torch.finfo(weight.dtype).eps / 2  # of a number's last place, at most
        weight.data *= 1 + half * torch.randn(weight.shape, generator=generator).to(weight)
    return moved
