"""Half the weights' size: the network in float16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

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
        converted = [
            float16.convert_float_to_float16(cut(model, network), keep_io_types=True, op_block_list=blocked)
            for network in networks
        ]
        nodes = sum(len(network.places) for network in networks)
        put_back(model, networks, converted)
        return model, dict(nodes=nodes, blocked=list(self.block))
