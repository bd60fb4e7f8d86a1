"""What a Resize does: to which size, and which pixels of a map each of its pixels lies between."""

from __future__ import annotations

import onnx

from .graphs import attribute
from .nodes import Nodes

MODES = ('half_pixel', 'pytorch_half_pixel', 'align_corners')
"""Each ``coordinate_transformation_mode`` that is computed here; all leave a map of the wanted size as it is."""


def gives_sizes(node: onnx.NodeProto) -> bool:
    """Whether it is a Resize whose fourth input is the shape of its result."""
    return (
        node.op_type == 'Resize'
        and len(node.input) == 4
        and attribute(node, 'axes') is None
        and attribute(node, 'keep_aspect_ratio_policy', 'stretch') == 'stretch'
    )


def is_linear(node: onnx.NodeProto) -> bool:
    """Whether every pixel is a mean of its neighbours that the sizes alone decide."""
    return (
        gives_sizes(node)
        and attribute(node, 'mode') == 'linear'
        and mode_of(node) in MODES
        and not attribute(node, 'antialias', 0)
    )


def mode_of(node: onnx.NodeProto) -> str:
    """The ``coordinate_transformation_mode``."""
    return attribute(node, 'coordinate_transformation_mode', 'half_pixel')


def position_of(op: Nodes, y: str, size: str, wanted: str, mode: str) -> tuple[str, str]:
    """Where pixels are on the map: counted from one row before it, as a whole number of parts of a row.

    Args:
        op: takes the nodes.
        y: the pixels.
        size: of the map, a scalar.
        wanted: pixels, a scalar.
        mode: the ``coordinate_transformation_mode``, one of MODES.

    Returns:
        Positions, of the shape of ``y``, and how many parts a row has.
    """
    if mode == 'align_corners':
        one = op.Max(op.Sub(wanted, 1), 1)
        return op.Add(op.Mul(y, op.Sub(size, 1)), one), one
    one = op.Add(wanted, wanted)
    position = op.Add(op.Mul(op.Add(op.Add(y, y), 1), size), wanted)
    if mode == 'pytorch_half_pixel':  # a single pixel is not the middle of the map, but its first
        position = op.Where(op.Equal(wanted, 1), one, position)
    return position, one
