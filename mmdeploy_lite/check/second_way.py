"""Both ways of a file that chooses between two are compared, not just the one that an image takes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ..export.choices import taking_the_second_way
from ..workdir import save_model


@dataclass
class SecondWay:
    """The file with every choice made for its second way.

    Attributes:
        session: of it.
        deciding: outputs that say whether the first way would have been taken.
        taken: of these, those that were true for some image.
    """

    session: Any
    deciding: list[str]
    taken: set[str] = field(default_factory=set)

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs of the file, and note which first ways were taken."""
        outputs = self.session.run(feeds)
        self.taken |= {name for name in self.deciding if outputs[name]}
        return outputs

    def not_exercised(self) -> list[str]:
        """What no image took."""
        return [
            f'the shorter way to an answer ({name}): no image took it'
            for name in self.deciding
            if name not in self.taken
        ]


def second_way(model: onnx.ModelProto, backend: Any) -> SecondWay | None:
    """The second way of a graph, None where it chooses nothing.

    Raises:
        BackendError: the backend cannot load it.
    """
    other, deciding = taking_the_second_way(model)
    if other is model:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'second_way.onnx')
        save_model(other, path)
        return SecondWay(backend.load(path), deciding)
