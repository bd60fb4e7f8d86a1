"""Faults by editing the graph of a finished file, each in one way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .edits import Edit, Graph, NotApplicableError, attribute, require, set_attribute

GRAPH_FAULTS: dict[str, Edit] = {}


def _fault(name: str) -> Callable[[Edit], Edit]:
    def register(edit: Edit) -> Edit:
        GRAPH_FAULTS[name] = edit
        return edit

    return register


def _has(graph: Graph, name: str) -> None:
    if name not in graph.outputs() + graph.inputs():
        raise NotApplicableError


def _test_cfg(graph: Graph) -> dict[str, Any]:
    return graph.metadata['test_cfg']


def _values_of(config: Any, key: str) -> Iterator[Any]:
    """All values under a key, however deep."""
    if isinstance(config, dict):
        for name, value in config.items():
            if name == key:
                yield value
            else:
                yield from _values_of(value, key)


# -- outputs ----------------------------------------------------------------------------------------------------------


@_fault('boxes shifted by one pixel')
def _shifted(graph: Graph) -> None:
    _has(graph, 'dets')
    graph.after('dets', 'Add', graph.constant(np.float32([1, 1, 1, 1, 0])))


@_fault('boxes shifted by a tenth of a pixel')
def _shifted_little(graph: Graph) -> None:
    _has(graph, 'dets')
    graph.after('dets', 'Add', graph.constant(np.float32([0.1, 0.1, 0.1, 0.1, 0])))


@_fault('boxes without their last pixel')
def _without_last_pixel(graph: Graph) -> None:
    _has(graph, 'dets')
    graph.after('dets', 'Sub', graph.constant(np.float32([0, 0, 1, 1, 0])))


@_fault('x and y swapped')
def _x_y(graph: Graph) -> None:
    _has(graph, 'dets')
    graph.after('dets', 'Gather', graph.constant(np.int64([1, 0, 3, 2, 4])), axis=2)


@_fault('scores off by a thousandth')
def _scores(graph: Graph) -> None:
    _has(graph, 'dets')
    graph.after('dets', 'Sub', graph.constant(np.float32([0, 0, 0, 0, 1e-3])))


@_fault('labels from one')
def _labels(graph: Graph) -> None:
    _has(graph, 'labels')
    graph.after('labels', 'Add', graph.constant(np.int64(1)))


@_fault('last detection lost')
def _one_less(graph: Graph) -> None:
    _has(graph, 'num_dets')
    graph.after('num_dets', 'Sub', graph.constant(np.int64(1)))
    graph.after('num_dets', 'Max', graph.constant(np.int64(0)))


# -- inputs -----------------------------------------------------------------------------------------------------------


@_fault('sx and sy swapped')
def _factors(graph: Graph) -> None:
    _has(graph, 'scale_factor')
    graph.after('scale_factor', 'Gather', graph.constant(np.int64([1, 0])), axis=1)


@_fault('scale factor ignored')
def _no_factor(graph: Graph) -> None:
    _has(graph, 'scale_factor')
    graph.after('scale_factor', 'Pow', graph.constant(np.float32(0)))


@_fault('height and width of the original swapped')
def _original(graph: Graph) -> None:
    _has(graph, 'ori_shape')
    graph.after('ori_shape', 'Gather', graph.constant(np.int64([1, 0])), axis=1)


@_fault('BGR and RGB swapped')
def _channels(graph: Graph) -> None:
    graph.after('image', 'Gather', graph.constant(np.int64([2, 1, 0])), axis=1)


@_fault('mean off by one level')
def _mean(graph: Graph) -> None:
    graph.after('image', 'Add', graph.constant(np.float32(1)))


@_fault('std off by one percent')
def _std(graph: Graph) -> None:
    graph.after('image', 'Mul', graph.constant(np.float32(1.01)))


@_fault('image moved by one pixel')
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


@_fault('a frozen batch item')
def _frozen_item(graph: Graph) -> None:
    size = graph.top.input[0].type.tensor_type.shape.dim[0].dim_value
    if size < 2:
        raise NotApplicableError
    graph.after('image', 'Gather', graph.constant(np.zeros(size, np.int64)), axis=0)


@_fault('a frozen input size')
def _frozen_size(graph: Graph) -> None:
    dims = graph.top.input[0].type.tensor_type.shape.dim
    if not dims[2].dim_param:
        raise NotApplicableError
    dims[2].dim_value, dims[3].dim_value = 128, 160


# -- preprocessing ----------------------------------------------------------------------------------------------------


def _padding(graph: Graph) -> onnx.NodeProto:
    """The data preprocessor's ``Pad``."""
    return require([node for node in graph.nodes('Pad') if 'preprocess' in node.name])[0]


@_fault('padding value')
def _pad_value(graph: Graph) -> None:
    node = _padding(graph)
    node.input[2] = graph.constant(graph.value(node.input[2]) + np.float32(0.5))


@_fault('begin and end pads swapped')
def _pad_ends(graph: Graph) -> None:
    name = _padding(graph).input[1]
    if graph.value(name) is not None:
        raise NotApplicableError
    graph.after(name, 'Gather', graph.constant(np.int64([4, 5, 6, 7, 0, 1, 2, 3])), axis=0)


# -- the network ------------------------------------------------------------------------------------------------------


@_fault('nearest for bilinear')
def _nearest(graph: Graph) -> None:
    for node in require([node for node in graph.nodes('Resize') if attribute(node, 'mode') == 'linear']):
        set_attribute(node, 'mode', 'nearest')
        set_attribute(node, 'coordinate_transformation_mode', 'asymmetric')


@_fault('bilinear for nearest')
def _bilinear(graph: Graph) -> None:
    for node in require([node for node in graph.nodes('Resize') if attribute(node, 'mode', 'nearest') == 'nearest']):
        set_attribute(node, 'mode', 'linear')


@_fault('align_corners flipped')
def _align_corners(graph: Graph) -> None:
    for node in require([node for node in graph.nodes('Resize') if attribute(node, 'mode') == 'linear']):
        aligned = attribute(node, 'coordinate_transformation_mode', 'half_pixel') == 'align_corners'
        set_attribute(node, 'coordinate_transformation_mode', 'half_pixel' if aligned else 'align_corners')


@_fault('sigmoid for softmax')
def _sigmoid(graph: Graph) -> None:
    for node in require(graph.nodes('Softmax')):
        node.op_type = 'Sigmoid'
        del node.attribute[:]


@_fault('RoIAlign without half-pixel')
def _roi_align(graph: Graph) -> None:
    for node in require(graph.nodes('RoiAlign')):
        set_attribute(node, 'coordinate_transformation_mode', 'output_half_pixel')


@_fault('RoIAlign with one sample per cell')
def _roi_samples(graph: Graph) -> None:
    for node in require(graph.nodes('RoiAlign')):
        set_attribute(node, 'sampling_ratio', 1)


@_fault('finest RoIs at another scale')
def _finest_rois(graph: Graph) -> None:
    _scale_rois(graph, 'roi_layers.0')


@_fault('coarsest RoIs at another scale')
def _coarsest_rois(graph: Graph) -> None:
    _scale_rois(graph, 'roi_layers.3')


def _scale_rois(graph: Graph, level: str) -> None:
    for node in require([node for node in graph.nodes('RoiAlign') if level in node.name]):
        set_attribute(node, 'spatial_scale', attribute(node, 'spatial_scale') * 2)


@_fault('weights in half precision')
def _half(graph: Graph) -> None:
    weights = {node.input[1] for node in graph.nodes('Conv')}
    for inner in graph.graphs():
        for tensor in inner.initializer:
            if tensor.name in weights:
                value = numpy_helper.to_array(tensor).astype(np.float16).astype(np.float32)
                tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))


@_fault('one filter lost')
def _filter(graph: Graph) -> None:
    # of the first convolution, so that it matters everywhere
    name = require(graph.nodes('Conv'))[0].input[1]
    for inner in graph.graphs():
        for tensor in inner.initializer:
            if tensor.name == name:
                value = numpy_helper.to_array(tensor).copy()
                value[np.abs(value).reshape(len(value), -1).sum(1).argmax()] = 0
                tensor.CopyFrom(numpy_helper.from_array(value, name))


@_fault('epsilon of LayerNorm')
def _epsilon(graph: Graph) -> None:
    for node in require(graph.nodes('LayerNormalization')):
        set_attribute(node, 'epsilon', 1e-2)


# -- the post-processing ----------------------------------------------------------------------------------------------


def _final_nms(graph: Graph) -> list[onnx.NodeProto]:
    """The NMS that makes the answer: of a two-stage detector the second; of a batch one for each image."""
    nodes = require(graph.nodes('NonMaxSuppression'))
    two_stage = bool(graph.nodes('RoiAlign'))
    return nodes[len(nodes) // 2 :] if two_stage else list(nodes)


@_fault('IoU threshold 0.1 higher')
def _iou(graph: Graph) -> None:
    for node in _final_nms(graph):
        node.input[3] = graph.constant(graph.value(node.input[3]) + np.float32(0.1))


@_fault('NMS left out')
def _no_nms(graph: Graph) -> None:
    for node in _final_nms(graph):
        node.input[3] = graph.constant(np.ones_like(graph.value(node.input[3])))


@_fault('class offset dropped from NMS')
def _offset(graph: Graph) -> None:
    for nms in _final_nms(graph):
        add = next((node for node in graph.ancestors(nms.input[0]) if node.op_type == 'Add'), None)
        if add is None:
            raise NotApplicableError
        add.op_type = 'Identity'
        del add.input[1:]


@_fault('top-k halved')
def _max_num(graph: Graph) -> None:
    for node in _final_nms(graph):
        limit = graph.value(node.input[2])
        if limit > 10_000:  # the test config has none
            raise NotApplicableError
        node.input[2] = graph.constant(limit // 2)


@_fault('nms_pre halved')
def _nms_pre(graph: Graph) -> None:
    limits = {int(value) for value in _values_of(_test_cfg(graph), 'nms_pre')}
    changed = 0
    for top in graph.nodes('TopK'):
        for node in [*graph.ancestors(top.input[1], 8), top]:
            for index, name in enumerate(node.input):
                value = graph.value(name)
                if value is not None and value.size == 1 and int(value.ravel()[0]) in limits:
                    node.input[index] = graph.constant(value // 2)
                    changed += 1
    require(range(changed))


@_fault('score_thr ignored')
def _score_thr(graph: Graph) -> None:
    thresholds = [np.float32(value) for value in _values_of(_test_cfg(graph), 'score_thr')]
    changed = 0
    for node in graph.nodes('Greater', 'GreaterOrEqual'):
        value = graph.value(node.input[1])
        if value is not None and value.size == 1 and value.dtype == np.float32 and value.ravel()[0] in thresholds:
            node.input[1] = graph.constant(np.full_like(value, -1))
            changed += 1
    require(range(changed))


def _levels(graph: Graph) -> list[str]:
    """Outputs of the layers that give the class scores of each level before their sigmoid, the finest first."""
    words = ('retina_cls', 'rtm_cls', 'multi_level_conv_cls', 'rpn_cls')
    found = {}
    for node in graph.nodes('Conv'):
        if match := re.search(rf'({"|".join(words)})(?:[._](\d+))?/', node.name):
            found[int(match[2] or 0)] = node.output[0]
    return [found[level] for level in sorted(found)]


@_fault('finest level skipped')
def _finest(graph: Graph) -> None:
    graph.after(require(_levels(graph))[0], 'Add', graph.constant(np.float32(-30)))


@_fault('coarsest level skipped')
def _coarsest(graph: Graph) -> None:
    graph.after(require(_levels(graph))[-1], 'Add', graph.constant(np.float32(-30)))


@_fault('last class lost')
def _last_class(graph: Graph) -> None:
    if 'seg_map' in graph.outputs() or 'seg_logits' in graph.outputs():
        layers = [node for node in graph.nodes('Conv') if 'conv_seg' in node.name]
    else:
        words = ('retina_cls', 'rtm_cls', 'multi_level_conv_cls')
        layers = [node for node in graph.nodes('Conv') if any(word in node.name for word in words)]
    for layer in require(layers):
        count = graph.value(layer.input[1]).shape[0]
        classes = len(graph.metadata['classes'])
        lost = np.zeros((1, count, 1, 1), np.float32)
        lost[:, classes - 1 :: classes] = -30
        graph.after(layer.output[0], 'Add', graph.constant(lost))


@_fault('masks from the wrong class')
def _mask_class(graph: Graph) -> None:
    layer = require([node for node in graph.nodes('Conv') if 'mask_head/conv_logits' in node.name])[0]
    classes = graph.value(layer.input[1]).shape[0]
    graph.after(layer.output[0], 'Gather', graph.constant(np.roll(np.arange(classes), 1)), axis=1)


@_fault('mask threshold 0.1 higher')
def _mask_threshold(graph: Graph) -> None:
    _has(graph, 'masks')
    nodes = [node for node in graph.ancestors('masks') if node.op_type == 'GreaterOrEqual']
    for node in require(nodes):
        node.input[1] = graph.constant(graph.value(node.input[1]) + np.float32(0.1))


@_fault('argmax over the wrong axis')
def _argmax(graph: Graph) -> None:
    _has(graph, 'seg_map')
    nodes = require([node for node in graph.ancestors('seg_map') if node.op_type == 'ArgMax'])
    for node in nodes:
        set_attribute(node, 'axis', attribute(node, 'axis') + 1)


@_fault('map of the second best class')
def _second(graph: Graph) -> None:
    _has(graph, 'seg_map')
    for node in require([node for node in graph.ancestors('seg_map') if node.op_type == 'ArgMax']):
        node.op_type = 'ArgMin'


@_fault('map moved by one class')
def _map_class(graph: Graph) -> None:
    _has(graph, 'seg_map')
    graph.after('seg_map', 'Add', graph.constant(np.int64(1)))


def _divisor(graph: Graph) -> onnx.NodeProto:
    """The division by ``count_mat`` of slide inference."""
    if _test_cfg(graph).get('mode') != 'slide':
        raise NotApplicableError
    last = 'seg_map' if 'seg_map' in graph.outputs() else 'seg_logits'
    return require([node for node in graph.ancestors(last) if node.op_type == 'Div'])[0]


@_fault('count_mat off by one window')
def _count_mat(graph: Graph) -> None:
    # where windows overlap, one of them is not counted
    node = _divisor(graph)
    counts = node.input[1]
    graph.after(counts, 'Sub', graph.constant(np.float32(1)))
    graph.after(counts, 'Max', graph.constant(np.float32(1)))


@_fault('count_mat left out')
def _no_count(graph: Graph) -> None:
    node = _divisor(graph)
    node.op_type = 'Identity'
    del node.input[1:]
