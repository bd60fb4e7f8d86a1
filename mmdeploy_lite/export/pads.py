"""Padding in numbers, where the exporter leaves it to the one who runs the graph."""

from __future__ import annotations

import onnx

from .graphs import all_nodes


def explicit_pads(model: onnx.ModelProto) -> None:
    """Write the pads of convolutions with ``padding='same'`` or ``'valid'`` out, in place.

    The exporter writes ``auto_pad``, which ONNX Runtime does not run together with dilations. PyTorch has strides of 1
    then, and the odd pixel at the end.
    """
    for node in all_nodes(model.graph):
        values = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
        if node.op_type != 'Conv' or values.get('auto_pad') not in (b'SAME_UPPER', b'VALID'):
            continue
        kernel = values['kernel_shape']
        reach = [
            (size - 1) * step for size, step in zip(kernel, values.get('dilations', [1] * len(kernel)), strict=True)
        ]
        if values['auto_pad'] == b'VALID':
            reach = [0] * len(kernel)
        pads = [*(total // 2 for total in reach), *(total - total // 2 for total in reach)]
        kept = [item for item in node.attribute if item.name not in ('auto_pad', 'pads')]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute('pads', pads)])
