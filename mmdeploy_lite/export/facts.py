"""What is known of the values of a graph, for whoever makes it smaller."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from .graphs import attribute, reads


def known_shapes(model: onnx.ModelProto) -> dict[str, Sequence[Any]]:
    """Per value the axes of its shape, as far as ONNX finds them: what has ``dim_value`` where a size is known."""
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    return {
        value.name: value.type.tensor_type.shape.dim
        for value in [*graph.value_info, *graph.input, *graph.output]
        if value.type.tensor_type.HasField('shape')
    }


def with_sizes(model: onnx.ModelProto, sizes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """A graph for images of any size, for those of one size.

    Args:
        model: is not changed.
        sizes: per input, those of the image.
    """
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for value in fixed.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, sizes.get(value.name, ()), strict=False):
            dim.dim_value = size
    del fixed.graph.value_info[:]
    return fixed


def resamples(tensor: TensorProto) -> bool:
    """Whether a constant is a matrix that interpolates or averages neighbours, and is no layer: it is mostly zeros, or
    nothing in it is negative.
    """
    if tensor.data_type != TensorProto.FLOAT or len(tensor.dims) != 2:
        return False
    values = numpy_helper.to_array(tensor)
    return np.count_nonzero(values) < values.size / 2 or bool((values >= 0).all())


class Facts:
    """Who makes a value, who reads it, and what shape it has.

    Args:
        model: with its constants folded.
        shapes: see :func:`known_shapes`; also of a graph that this one was made of, as values keep their names.
        usual: gives the shapes for a usual image, where the sizes of images are not known.
        aside: weights that were put aside, see :mod:`~mmdeploy_lite.export.weights`.

    Attributes:
        nodes: of the graph.
        producers: per value, the node that makes it.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        shapes: Mapping[str, Sequence[Any]],
        usual: Callable[[], Mapping[str, Sequence[Any]]] | None = None,
        aside: Sequence[TensorProto] = (),
    ) -> None:
        graph = model.graph
        self.nodes = list(graph.node)
        self.producers = {name: node for node in graph.node for name in node.output}
        self._shapes = shapes
        self._usual = usual
        self._outputs = {value.name for value in graph.output}
        self._weights = {tensor.name: tensor for tensor in (*aside, *graph.initializer)}
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in reads(node):
                self._readers.setdefault(name, []).append(node)

    def weights(self, name: str) -> TensorProto | None:
        """An initializer, or what was put aside, whose numbers it may not be worth to look at."""
        return self._weights.get(name)

    def constant(self, name: str) -> np.ndarray | None:
        """The values of a constant."""
        tensor, node = self._weights.get(name), self.producers.get(name)
        if tensor is None and node is not None and node.op_type == 'Constant':
            tensor = attribute(node, 'value')
        return None if tensor is None else numpy_helper.to_array(tensor)

    def rank(self, name: str) -> int | None:
        """How many axes a value has; None where that is not known."""
        if name in self._weights:
            return len(self._weights[name].dims)
        return len(self._shapes[name]) if name in self._shapes else None

    def size(self, name: str, axis: int) -> int | None:
        """How many elements a value has along an axis, for every image; None where that is not known."""
        return _size(self._shapes, name, axis)

    def usual_size(self, name: str, axis: int) -> int | None:
        """How many it has for a usual image: only to say what is fast, as for another it may have more or less."""
        known = _size(self._shapes, name, axis)
        return _size(self._usual(), name, axis) if known is None and self._usual is not None else known

    def reads_values(self, name: str) -> bool:
        """Whether a value follows from values of the graph's inputs, and not from their shapes and constants alone."""
        wanted, seen = [name], {name}
        while wanted:
            name = wanted.pop()
            node = self.producers.get(name)
            if node is None and name and name not in self._weights:
                return True
            if node is not None and node.op_type not in ('Shape', 'Size'):
                wanted += reads(node) - seen
                seen |= reads(node)
        return False

    def only_reader(self, name: str) -> onnx.NodeProto | None:
        """The one node that reads a value, if there is just one and the graph does not give the value out."""
        readers = self._readers.get(name, ())
        return readers[0] if len(readers) == 1 and name not in self._outputs else None


def _size(shapes: Mapping[str, Sequence[Any]], name: str, axis: int) -> int | None:
    dims = shapes.get(name, ())
    known = -len(dims) <= axis < len(dims) and dims[axis].HasField('dim_value')
    return dims[axis].dim_value if known else None
