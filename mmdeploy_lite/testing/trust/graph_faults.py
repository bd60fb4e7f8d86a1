"""Faults of inputs, outputs and the network, by editing the graph of a finished file, each in one way."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ...export.graphs import attribute
from .edits import GRAPH_FAULTS, Graph, NotApplicableError, fault, has_value, require, set_attribute

__all__ = ['GRAPH_FAULTS']

# -- outputs ----------------------------------------------------------------------------------------------------------


@fault('boxes shifted by one pixel')
def _shifted(graph: Graph) -> None:
    has_value(graph, 'dets')
    graph.after('dets', 'Add', graph.constant(np.float32([1, 1, 1, 1, 0])))


@fault('boxes shifted by a tenth of a pixel')
def _shifted_little(graph: Graph) -> None:
    has_value(graph, 'dets')
    graph.after('dets', 'Add', graph.constant(np.float32([0.1, 0.1, 0.1, 0.1, 0])))


@fault('boxes without their last pixel')
def _without_last_pixel(graph: Graph) -> None:
    has_value(graph, 'dets')
    graph.after('dets', 'Sub', graph.constant(np.float32([0, 0, 1, 1, 0])))


@fault('x and y swapped')
def _x_y(graph: Graph) -> None:
    has_value(graph, 'dets')
    graph.after('dets', 'Gather', graph.constant(np.int64([1, 0, 3, 2, 4])), axis=2)


@fault('scores off by a thousandth')
def _scores(graph: Graph) -> None:
    has_value(graph, 'dets')
    graph.after('dets', 'Sub', graph.constant(np.float32([0, 0, 0, 0, 1e-3])))


@fault('labels from one')
def _labels(graph: Graph) -> None:
    has_value(graph, 'labels')
    graph.after('labels', 'Add', graph.constant(np.int64(1)))


@fault('last detection lost')
def _one_less(graph: Graph) -> None:
    has_value(graph, 'num_dets')
    graph.after('num_dets', 'Sub', graph.constant(np.int64(1)))
    graph.after('num_dets', 'Max', graph.constant(np.int64(0)))


# -- inputs -----------------------------------------------------------------------------------------------------------


@fault('sx and sy swapped')
def _factors(graph: Graph) -> None:
    has_value(graph, 'scale_factor')
    graph.after('scale_factor', 'Gather', graph.constant(np.int64([1, 0])), axis=1)


@fault('scale factor ignored')
def _no_factor(graph: Graph) -> None:
    has_value(graph, 'scale_factor')
    graph.after('scale_factor', 'Pow', graph.constant(np.float32(0)))


@fault('height and width of the original swapped')
def _original(graph: Graph) -> None:
    has_value(graph, 'ori_shape')
    graph.after('ori_shape', 'Gather', graph.constant(np.int64([1, 0])), axis=1)


@fault('BGR and RGB swapped')
def _channels(graph: Graph) -> None:
    graph.after('image', 'Gather', graph.constant(np.int64([2, 1, 0])), axis=1)


@fault('mean off by one level')
def _mean(graph: Graph) -> None:
    graph.after('image', 'Add', graph.constant(np.float32(1)))


@fault('std off by one percent')
def _std(graph: Graph) -> None:
    graph.after('image', 'Mul', graph.constant(np.float32(1.01)))


@fault('image moved by one pixel')
def _moved(graph: Graph) -> None:
    # the last column comes first
    whole = 'image_whole'
    graph.reread('image', 'image_moved')
    numbers = [graph.constant(np.int64([value])) for value in (-1, 0, np.iinfo(np.int64).max, 3)]
    last, first, far, axis = numbers
    for index, node in enumerate(
        [
            helper.make_node('Identity', ['image'], [whole]),
            helper.make_node('Slice', [whole, last, far, axis], ['image_right']),
            helper.make_node('Slice', [whole, first, last, axis], ['image_left']),
            helper.make_node('Concat', ['image_right', 'image_left'], ['image_moved'], axis=3),
        ]
    ):
        graph.top.node.insert(index, node)


@fault('a frozen batch item')
def _frozen_item(graph: Graph) -> None:
    size = graph.top.input[0].type.tensor_type.shape.dim[0].dim_value
    if size < 2:
        raise NotApplicableError
    graph.after('image', 'Gather', graph.constant(np.zeros(size, np.int64)), axis=0)


@fault('a frozen input size')
def _frozen_size(graph: Graph) -> None:
    dims = graph.top.input[0].type.tensor_type.shape.dim
    if not dims[2].dim_param:
        raise NotApplicableError
    dims[2].dim_value, dims[3].dim_value = 128, 160


# -- preprocessing ----------------------------------------------------------------------------------------------------


def _padding(graph: Graph) -> onnx.NodeProto:
    """The data preprocessor's ``Pad``."""
    return require([node for node in graph.nodes('Pad') if 'preprocess' in node.name])[0]


@fault('padding value')
def _pad_value(graph: Graph) -> None:
    node = _padding(graph)
    node.input[2] = graph.constant(graph.value(node.input[2]) + np.float32(0.5))


@fault('begin and end pads swapped')
def _pad_ends(graph: Graph) -> None:
    name = _padding(graph).input[1]
    if graph.value(name) is not None:
        raise NotApplicableError
    graph.after(name, 'Gather', graph.constant(np.int64([4, 5, 6, 7, 0, 1, 2, 3])), axis=0)


# -- the network ------------------------------------------------------------------------------------------------------


@fault('nearest for bilinear')
def _nearest(graph: Graph) -> None:
    for node in require([node for node in graph.nodes('Resize') if attribute(node, 'mode') == 'linear']):
        set_attribute(node, 'mode', 'nearest')
        set_attribute(node, 'coordinate_transformation_mode', 'asymmetric')


@fault('bilinear for nearest')
def _bilinear(graph: Graph) -> None:
    for node in require([node for node in graph.nodes('Resize') if attribute(node, 'mode', 'nearest') == 'nearest']):
        set_attribute(node, 'mode', 'linear')


@fault('align_corners flipped')
def _align_corners(graph: Graph) -> None:
    for node in require([node for node in graph.nodes('Resize') if attribute(node, 'mode') == 'linear']):
        aligned = attribute(node, 'coordinate_transformation_mode', 'half_pixel') == 'align_corners'
        set_attribute(node, 'coordinate_transformation_mode', 'half_pixel' if aligned else 'align_corners')


@fault('sigmoid for softmax')
def _sigmoid(graph: Graph) -> None:
    for node in require(graph.nodes('Softmax')):
        node.op_type = 'Sigmoid'
        del node.attribute[:]


@fault('RoIAlign without half-pixel')
def _roi_align(graph: Graph) -> None:
    for node in require(graph.nodes('RoiAlign')):
        set_attribute(node, 'coordinate_transformation_mode', 'output_half_pixel')


@fault('RoIAlign with one sample per cell')
def _roi_samples(graph: Graph) -> None:
    for node in require(graph.nodes('RoiAlign')):
        set_attribute(node, 'sampling_ratio', 1)


@fault('finest RoIs at another scale')
def _finest_rois(graph: Graph) -> None:
    _scale_rois(graph, 'roi_layers.0')


@fault('coarsest RoIs at another scale')
def _coarsest_rois(graph: Graph) -> None:
    _scale_rois(graph, 'roi_layers.3')


def _scale_rois(graph: Graph, level: str) -> None:
    for node in require([node for node in graph.nodes('RoiAlign') if level in node.name]):
        set_attribute(node, 'spatial_scale', attribute(node, 'spatial_scale') * 2)


@fault('weights in half precision')
def _half(graph: Graph) -> None:
    weights = {node.input[1] for node in graph.nodes('Conv')}
    for inner in graph.graphs():
        for tensor in inner.initializer:
            if tensor.name in weights:
                value = numpy_helper.to_array(tensor).astype(np.float16).astype(np.float32)
                tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))


@fault('one filter lost')
def _filter(graph: Graph) -> None:
    # of the first convolution, so that it matters everywhere
    name = require(graph.nodes('Conv'))[0].input[1]
    for inner in graph.graphs():
        for tensor in inner.initializer:
            if tensor.name == name:
                value = numpy_helper.to_array(tensor).copy()
                value[np.abs(value).reshape(len(value), -1).sum(1).argmax()] = 0
                tensor.CopyFrom(numpy_helper.from_array(value, name))


@fault('epsilon of LayerNorm')
def _epsilon(graph: Graph) -> None:
    for node in require(graph.nodes('LayerNormalization')):
        set_attribute(node, 'epsilon', 1e-2)
