"""The model's data preprocessor as part of the graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UnsupportedError
from .shapes import at_least, python_shape, static_size

# Classes whose test-time forward is what InGraphPreprocess does; a subclass with a forward of its own is refused by
# name.
# BoxInst's adds training targets to mmdet's.
_KNOWN = ('ImgDataPreprocessor', 'DetDataPreprocessor', 'SegDataPreProcessor', 'BoxInstDataPreprocessor')


@dataclass(frozen=True)
class PreprocessSpec:
    """What a data preprocessor does to one image at test time.

    Attributes:
        swap_channels: BGR to RGB or the reverse; only images of 3 channels are swapped.
        mean: per channel, of pixels 0-255 after the swap; None for no normalization.
        std: per channel.
        pad_value: of the normalized image.
        divisor: pads right and below to a multiple of it; 1 for none.
        size: (h, w) to pad to at least; None for none.
    """

    swap_channels: bool
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    pad_value: float
    divisor: int
    size: tuple[int, int] | None

    @property
    def pads(self) -> bool:
        """Images of some sizes get padding."""
        return self.divisor > 1 or self.size is not None

    @classmethod
    def of(cls, preprocessor: nn.Module) -> PreprocessSpec:
        """Read it from mmengine's, mmdet's or mmseg's data preprocessor.

        Raises:
            UnsupportedError: another class, whose forward is not known here.
        """
        definer = _check_class(type(preprocessor))
        mean, std = None, None
        if preprocessor._enable_normalize:
            mean, std = (tuple(getattr(preprocessor, name).flatten().tolist()) for name in ('mean', 'std'))
        if definer.__name__ == 'SegDataPreProcessor':
            test_cfg = preprocessor.test_cfg or {}
            size = test_cfg.get('size')
            return cls(
                bool(preprocessor.channel_conversion),
                mean,
                std,
                float(preprocessor.pad_val),
                int(test_cfg.get('size_divisor') or 1),
                tuple(size) if size is not None else None,
            )
        return cls(
            bool(preprocessor._channel_conversion),
            mean,
            std,
            float(preprocessor.pad_value),
            int(preprocessor.pad_size_divisor),
            None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for the file's metadata."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}


def _check_class(cls: type) -> type:
    """The class of the libraries whose forward a data preprocessor has.

    Raises:
        UnsupportedError: it has another, or changes what that calls.
    """
    definers = {
        method: next((base for base in cls.__mro__ if method in base.__dict__), cls)
        for method in ('cast_data', 'forward')
    }
    for method, definer in definers.items():
        package = definer.__module__.partition('.')[0]
        if package not in ('mmengine', 'mmdet', 'mmseg') or (method == 'forward' and definer.__name__ not in _KNOWN):
            raise UnsupportedError(
                f'the data preprocessor {cls.__name__} has a {method} of its own ({definer.__module__}); only'
                f' {", ".join(_KNOWN)} can be put in the graph. Do its work in the test pipeline, or set'
                ' model.data_preprocessor.type to one of these'
            )
    return definers['forward']


class InGraphPreprocess(nn.Module):
    """Channel swap, normalization and padding of the model's data preprocessor.

    Args:
        spec: what to do.
    """

    def __init__(self, spec: PreprocessSpec) -> None:
        super().__init__()
        self.spec = spec
        if spec.mean is not None:
            self.register_buffer('mean', torch.tensor(spec.mean).view(1, -1, 1, 1), persistent=False)
            self.register_buffer('std', torch.tensor(spec.std).view(1, -1, 1, 1), persistent=False)

    def forward(self, image: Tensor) -> tuple[Tensor, tuple[Any, Any]]:
        """Preprocess.

        Args:
            image: (N, C, H, W) float32 or uint8, pixels 0-255 in the pipeline's channel order.

        Returns:
            The network's input (N, C, H', W') float32, and (pad_h, pad_w) that were added below and right.
        """
        if self.spec.swap_channels and python_shape(image)[1] == 3:
            image = image[:, [2, 1, 0]]
        image = image.float()
        if self.spec.mean is not None:
            image = (image - self.mean) / self.std
        height, width = static_size(image) or image.shape[-2:]
        pad_h = self._padding(height, 0)
        pad_w = self._padding(width, 1)
        if isinstance(pad_h, int) and isinstance(pad_w, int) and not (pad_h or pad_w):
            return image, (0, 0)
        return F.pad(image, (0, pad_w, 0, pad_h), value=self.spec.pad_value), (pad_h, pad_w)

    def _padding(self, size: Any, axis: int) -> Any:
        if self.spec.size is not None:
            target = self.spec.size[axis]
            return at_least(target - size, 0)
        if self.spec.divisor <= 1:
            return 0
        return -size % self.spec.divisor
