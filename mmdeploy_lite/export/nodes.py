"""Nodes of a graph, written as calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


class Nodes:
    """Nodes as calls: ``nodes.Add(x, 1)`` adds one and gives back the name of its result.

    Args:
        prefix: of all names.

    Attributes:
        nodes: in order.
        weights: the numbers that they read.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._numbers: set[str] = set()
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def __getattr__(self, kind: str) -> Callable[..., str]:
        def add(*inputs: Any, **attributes: Any) -> str:
            name = f'{self._prefix}_{kind}{len(self.nodes)}'
            read = [value if isinstance(value, str) else self.number(value) for value in inputs]
            self.nodes.append(helper.make_node(kind, read, [name], name=name, **attributes))
            return name

        return add

    def constant(self, values: np.ndarray, name: str) -> str:
        """A number of numbers, by a name of its own behind the prefix."""
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(values), f'{self._prefix}_{name}'))
        return self.weights[-1].name

    def number(self, value: Any) -> str:
        """A number, or a list of them, as floats or whole numbers; each is there once."""
        values = np.array(value, dtype=np.float32 if isinstance(value, float) else np.int64)
        name = f'{self._prefix}_{value}'.replace(' ', '')
        if name not in self._numbers:
            self._numbers.add(name)
            self.weights.append(numpy_helper.from_array(values, name))
        return name
