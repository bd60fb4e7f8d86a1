"""Half the weights' size: the network in float16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import TensorProto

from ..errors import ConfigError
from ..registry import PRECISIONS
from .network import cut, find_networks, put_back
from .scheme import Scheme

BLOCKED = ('GridSample', 'InstanceNormalization', 'NonMaxSuppression', 'Resize', 'RoiAlign', 'TopK')
"""Operators within the network that stay in float32, besides those that ONNX Runtime's converter names itself: places
in an image need more than the 11 bits of a float16, and sums over a whole map more than its range.
"""


@PRECISIONS.register_module(name='fp16')
class FP16(Scheme):
    """The weights and the activations of the network in float16, by ONNX Runtime's own converter.

    Inputs and outputs stay as they are, and so does all that comes before the first layer and after the last: boxes in
    pixels and NMS.

    Args:
        block: operators that stay in float32, besides :data:`BLOCKED`.
        **limits: see :class:`Scheme`.
    """

    name = 'fp16'

    def __init__(self, block: Sequence[str] = (), **limits: Any) -> None:
        super().__init__(**limits)
        if isinstance(block, str) or not all(isinstance(name, str) for name in block):
            raise ConfigError(f'deploy.precision.block is {block!r}; it must be a list of operators, as in [Softmax]')
        self.block = tuple(block)

    def convert(self, model: onnx.ModelProto, *_: Any) -> tuple[onnx.ModelProto, dict[str, Any]]:
        """See :meth:`Scheme.convert`."""
        from onnxruntime.transformers import float16

        blocked = sorted({*float16.DEFAULT_OP_BLOCK_LIST, *BLOCKED, *self.block})
        networks = find_networks(model)
        converted = []
        for network in networks:
            part = cut(model, network)
            deviations = deviation_nodes(part.graph)
            lowered = float16.convert_float_to_float16(
                part, keep_io_types=True, op_block_list=blocked, node_block_list=deviations
            )
            drop_round_trips(lowered.graph)
            converted.append(lowered)
        nodes = sum(len(network.places) for network in networks)
        put_back(model, networks, converted)
        return model, dict(nodes=nodes, blocked=list(self.block))


def drop_round_trips(graph: onnx.GraphProto) -> None:
    """Hand a float32 from one node that stays in float32 to the next as it is, in place; the converter rounds it."""
    kinds = {TensorProto.FLOAT: {}, TensorProto.FLOAT16: {}}
    for node in graph.node:
        if node.op_type == 'Cast' and (made := kinds.get(node.attribute[0].i)) is not None:
            made[node.output[0]] = node.input[0]
    back, there = kinds[TensorProto.FLOAT], kinds[TensorProto.FLOAT16]
    same = {name: there[source] for name, source in back.items() if source in there}
    for node in graph.node:
        node.input[:] = [same.get(name, name) for name in node.input]
    outputs = {value.name for value in graph.output}
    used = {name for node in graph.node for name in node.input} | outputs
    while dead := [node for node in graph.node if node.op_type == 'Cast' and node.output[0] not in used]:
        for node in dead:
            graph.node.remove(node)
        used = {name for node in graph.node for name in node.input} | outputs


_TO_THE_ROOT = ('Add', 'Div', 'ReduceMean', 'Reciprocal', 'Sqrt')


def deviation_nodes(graph: onnx.GraphProto) -> list[str]:
    """Names of the nodes that make a deviation: means, differences from them, means of their squares, and the root.

    A square of more than 256 is beyond a float16. Such nodes are what group norm is made of, and what a norm that has
    no operator of its own is.
    """
    producers = {output: node for node in graph.node for output in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    found: dict[str, None] = {}
    for node in graph.node:
        square = producers.get(node.input[0]) if node.op_type == 'ReduceMean' else None
        if square is None or not (square.op_type == 'Pow' or square.op_type == 'Mul' and len(set(square.input)) == 1):
            continue
        chain = [node, square]
        difference = producers.get(square.input[0])
        if difference is not None and difference.op_type == 'Sub':
            chain.append(difference)
            mean = producers.get(difference.input[1])
            while mean is not None and mean.op_type == 'ReduceMean':
                chain.append(mean)
                mean = producers.get(mean.input[0])
        last, following = node, readers.get(node.output[0], [])
        while (
            len(following) == 1 and following[0].op_type in _TO_THE_ROOT and last.op_type not in ('Div', 'Reciprocal')
        ):
            last = following[0]
            chain.append(last)
            following = readers.get(last.output[0], [])
        found.update(dict.fromkeys(item.name for item in chain))
    return list(found)
