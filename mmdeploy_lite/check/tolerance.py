"""The tolerance table: how much two answers may differ and still be the same answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from mmdeploy_lite.errors import ConfigError


@dataclass(frozen=True)
class Tolerance:
    """How much PyTorch and the backend may differ.

    Both compute in float32 but add in a different order, so equal answers differ by rounding: YOLOX-nano's boxes by
    4e-4 px and its scores by 4e-5 between PyTorch and ONNX Runtime on photos. The values leave room for deeper networks
    and stay far below any fault worth the name: half a pixel, a lost class, a threshold not applied.

    Attributes:
        score: Largest difference of two scores. 2.5 x the measured rounding; a score is printed and thresholded with
            two or three digits.
        box_px: Largest difference of a box coordinate in pixels. Over 100 x the measured rounding, a tenth of the half
            pixel that the smallest real fault (``aligned``, a ``- 1``) makes.
        box_rel: The same in parts of the image's longer side, for images beyond 500 px: a box is decoded from offsets
            that are relative to its size, so its rounding grows with the image. The larger of the two counts.
        mask: A mask or map pixel whose distance to the threshold, or gap between the two best logits, is within this
            part of the range is undecided: rounding alone can turn it.
        tensor_rel: Largest difference of raw outputs (logits, probabilities) in parts of the reference tensor's range.
            Absolute errors grow with the magnitude of the terms that are added, which the range reflects.
        undecidable_share: With more than this part of the reference detections (but more than one) or of the pixels
            excused, the images decide nothing: the verdict is "undecidable".
    """

    score: float = 1e-4
    box_px: float = 0.05
    box_rel: float = 1e-4
    mask: float = 1e-4
    tensor_rel: float = 1e-4
    undecidable_share: float = 0.05

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or value < 0:
                raise ConfigError(f'tolerance {item.name!r} must be a number that is not negative, got {value!r}')

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None = None) -> Tolerance:
        """Build from a deploy config's ``tolerance`` dict; what it does not name keeps its default.

        Raises:
            ConfigError: An unknown key, or a value that is not a number >= 0.
        """
        config = dict(config or {})
        known = [item.name for item in fields(cls)]
        unknown = sorted(set(config) - set(known))
        if unknown:
            raise ConfigError(f'unknown tolerance {", ".join(map(repr, unknown))}: known are {", ".join(known)}')
        return cls(**config)

    def box(self, image_size: tuple[int, int]) -> float:
        """Largest difference of a box coordinate in pixels, for an image of ``image_size`` (h, w)."""
        return max(self.box_px, self.box_rel * max(image_size))

    def loosened(self) -> list[str]:
        """One line per value that is larger than its default: the report must say so."""
        return [
            f'{item.name} {getattr(self, item.name):g} (default {item.default:g})'
            for item in fields(self)
            if getattr(self, item.name) > item.default
        ]

    def to_dict(self) -> dict[str, float]:
        """All values by name."""
        return {item.name: float(getattr(self, item.name)) for item in fields(self)}
