"""Faults of the post-processing, by editing the graph of a finished file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx

from ...export.graphs import attribute
from .edits import Graph, NotApplicableError, fault, has_value, require, set_attribute


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


def _final_nms(graph: Graph) -> list[onnx.NodeProto]:
    """The NMS that makes the answer: of a two-stage detector the second; of a batch one for each image."""
    nodes = require(graph.nodes('NonMaxSuppression'))
    two_stage = bool(graph.nodes('RoiAlign'))
    return nodes[len(nodes) // 2 :] if two_stage else list(nodes)


@fault('IoU threshold 0.1 higher')
def _iou(graph: Graph) -> None:
    for node in _final_nms(graph):
        node.input[3] = graph.constant(graph.value(node.input[3]) + np.float32(0.1))


@fault('NMS left out')
def _no_nms(graph: Graph) -> None:
    for node in _final_nms(graph):
        node.input[3] = graph.constant(np.ones_like(graph.value(node.input[3])))


@fault('class offset dropped from NMS')
def _offset(graph: Graph) -> None:
    for nms in _final_nms(graph):
        add = next((node for node in graph.ancestors(nms.input[0]) if node.op_type == 'Add'), None)
        if add is None:
            raise NotApplicableError
        add.op_type = 'Identity'
        del add.input[1:]


@fault('top-k halved')
def _max_num(graph: Graph) -> None:
    for node in _final_nms(graph):
        limit = graph.value(node.input[2])
        if limit > 10_000:  # the test config has none
            raise NotApplicableError
        node.input[2] = graph.constant(limit // 2)


@fault('nms_pre halved')
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


@fault('score_thr ignored')
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


@fault('finest level skipped')
def _finest(graph: Graph) -> None:
    graph.after(require(_levels(graph))[0], 'Add', graph.constant(np.float32(-30)))


@fault('coarsest level skipped')
def _coarsest(graph: Graph) -> None:
    graph.after(require(_levels(graph))[-1], 'Add', graph.constant(np.float32(-30)))


@fault('last class lost')
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


@fault('masks from the wrong class')
def _mask_class(graph: Graph) -> None:
    layer = require([node for node in graph.nodes('Conv') if 'mask_head/conv_logits' in node.name])[0]
    classes = graph.value(layer.input[1]).shape[0]
    graph.after(layer.output[0], 'Gather', graph.constant(np.roll(np.arange(classes), 1)), axis=1)


@fault('mask threshold 0.1 higher')
def _mask_threshold(graph: Graph) -> None:
    has_value(graph, 'masks')
    nodes = [node for node in graph.ancestors('masks') if node.op_type == 'GreaterOrEqual']
    for node in require(nodes):
        node.input[1] = graph.constant(graph.value(node.input[1]) + np.float32(0.1))


@fault('argmax over the wrong axis')
def _argmax(graph: Graph) -> None:
    has_value(graph, 'seg_map')
    nodes = require([node for node in graph.ancestors('seg_map') if node.op_type == 'ArgMax'])
    for node in nodes:
        set_attribute(node, 'axis', attribute(node, 'axis') + 1)


@fault('map of the second best class')
def _second(graph: Graph) -> None:
    has_value(graph, 'seg_map')
    for node in require([node for node in graph.ancestors('seg_map') if node.op_type == 'ArgMax']):
        node.op_type = 'ArgMin'


@fault('map moved by one class')
def _map_class(graph: Graph) -> None:
    has_value(graph, 'seg_map')
    graph.after('seg_map', 'Add', graph.constant(np.int64(1)))


def _divisor(graph: Graph) -> onnx.NodeProto:
    """The division by ``count_mat`` of slide inference."""
    if _test_cfg(graph).get('mode') != 'slide':
        raise NotApplicableError
    last = 'seg_map' if 'seg_map' in graph.outputs() else 'seg_logits'
    return require([node for node in graph.ancestors(last) if node.op_type == 'Div'])[0]


@fault('count_mat off by one window')
def _count_mat(graph: Graph) -> None:
    # where windows overlap, one of them is not counted
    node = _divisor(graph)
    counts = node.input[1]
    graph.after(counts, 'Sub', graph.constant(np.float32(1)))
    graph.after(counts, 'Max', graph.constant(np.float32(1)))


@fault('count_mat left out')
def _no_count(graph: Graph) -> None:
    node = _divisor(graph)
    node.op_type = 'Identity'
    del node.input[1:]
