"""What every way to a less exact file has in common: its limits."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import onnx

from ..errors import ConfigError

MAX_LOSS = 0.01
"""One point of mAP or mIoU: the step in which models are told apart. Within it the file is the same model for most
purposes; beyond it, it is a worse one, and that is for its user to say.
"""

MIN_AGREEMENT = 0.9
"""Where there is nothing to measure mAP or mIoU on: nine answers of ten are PyTorch's. Agreement is far stricter than
accuracy: an object that both find, each with a box of its own, counts only while the boxes overlap.
"""


class Scheme:
    """Makes a less exact file of an exact one, and says how much less exact it may be.

    Args:
        max_loss: of mAP or mIoU, absolute, from 0 to 1, on the config's test dataset.
        min_agreement: share of PyTorch's answers that the file gives too, on the images given; counts where there is
            no dataset to measure on.
        metrics: measure mAP or mIoU where the config's test dataset is there.

    Raises:
        ConfigError: a limit that is no number from 0 to 1.
    """

    name: ClassVar[str]

    def __init__(self, max_loss: float = MAX_LOSS, min_agreement: float = MIN_AGREEMENT, metrics: bool = True) -> None:
        for key, value in (('max_loss', max_loss), ('min_agreement', min_agreement)):
            number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            if not number or not 0 <= value <= 1:
                raise ConfigError(f'deploy.precision.{key} is {value!r}; it must be a number from 0 to 1')
        if not isinstance(metrics, bool):
            raise ConfigError(f'deploy.precision.metrics is {metrics!r}; it must be True or False')
        self.max_loss = float(max_loss)
        self.min_agreement = float(min_agreement)
        self.metrics = metrics

    def convert(
        self, model: onnx.ModelProto, task: Any, takes: Any, steps: Any
    ) -> tuple[onnx.ModelProto, dict[str, Any]]:
        """Convert the graph.

        Args:
            model: the exact one; may be changed.
            task: that it was exported for, whose test pipeline prepares images for calibration.
            takes: whether the file takes a sample, an image as the test pipeline leaves it.
            steps: a function of a number of steps, that returns a context manager with a function to call after each.

        Returns:
            The converted graph, and what to say of it: plain json types, for the report and the file's metadata.

        Raises:
            DeployError: it cannot be converted.
        """
        raise NotImplementedError
