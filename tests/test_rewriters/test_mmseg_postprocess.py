"""Logits to classes at the original size, against mmseg's."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mmdeploy_lite.export import ExportState, exporting
from mmdeploy_lite.export.graphs import all_nodes, subgraphs
from mmdeploy_lite.export.optimize import optimize
from mmdeploy_lite.rewriting import RewriteContext

from .conftest import Traced, image

REWRITERS = ['PostprocessResult', 'Resize', 'Squeeze', 'DeepCopy']


def segmentor(align_corners=False):
    from mmseg.models.segmentors.base import BaseSegmentor

    head = SimpleNamespace(threshold=0.3)
    return BaseSegmentor, SimpleNamespace(align_corners=align_corners, decode_head=head)


def answers(align_corners=False, padding=(0, 0), scores=False, batch=1):
    """A function of logits and ``ori_shape``, (N, 2)."""

    def function(logits, ori_shape):
        from mmseg.structures import SegDataSample

        base, model = segmentor(align_corners)
        samples = []
        for index in range(batch):
            height, width = ori_shape[index, 0], ori_shape[index, 1]
            meta = dict(ori_shape=(height, width), img_padding_size=(0, padding[1], 0, padding[0]))
            if not torch.jit.is_tracing():
                meta['ori_shape'] = int(height), int(width)
            samples.append(SegDataSample(metainfo=meta))
        results = base.postprocess_result(model, logits, samples)
        if scores:
            return torch.stack([result.seg_logits.data for result in results])
        return torch.cat([result.pred_sem_seg.data for result in results]).long()

    return function


def sizes(*shapes):
    return torch.tensor(shapes)


@pytest.mark.parametrize('dynamic', [False, True])
@pytest.mark.parametrize('classes', [1, 4])
@pytest.mark.parametrize(('align_corners', 'padding'), [(False, (0, 0)), (True, (0, 0)), (False, (3, 5))])
def test_own_size_and_others(classes, align_corners, padding, dynamic):
    function = answers(align_corners, padding)
    shape = (1, classes, 15, 21)
    axes = [(2, 3)] if dynamic else ()
    traced = Traced(function, [image(0, *shape), sizes((9, 12))], REWRITERS, axes, dynamic)
    assert traced.unknown == []
    own = tuple(extent - pad for extent, pad in zip(shape[2:], padding, strict=True))
    for seed, wanted in enumerate([own, (9, 12), (own[0], 30), (40, own[1]), own[::-1]]):
        logits, ori_shape = image(seed, *shape), sizes(wanted)
        np.testing.assert_array_equal(traced.run(logits, ori_shape)[0], function(logits, ori_shape).numpy())


def test_each_image_of_a_batch_for_itself():
    function = answers(batch=2)
    # both of one size while tracing, as the results are put together
    traced = Traced(function, [image(0, 2, 3, 8, 10), sizes((8, 10), (8, 10))], REWRITERS)
    choices = [node for node in optimize(traced.model).graph.node if node.op_type == 'If']
    assert [[node.op_type for node in all_nodes(subgraphs(choice)[0])].count('Resize') for choice in choices] == [1, 1]
    for shape in ((8, 10), (12, 5)):
        logits, ori_shape = image(1, 2, 3, 8, 10), sizes(shape, shape)
        np.testing.assert_array_equal(traced.run(logits, ori_shape)[0], function(logits, ori_shape).numpy())


def test_at_its_own_size_nothing_is_resized():
    traced = Traced(answers(), [image(0, 1, 4, 15, 21), sizes((9, 12))], REWRITERS)
    model = optimize(traced.model)
    (choice,) = [node for node in model.graph.node if node.op_type == 'If']
    inside = {item.name: [node.op_type for node in item.g.node] for item in choice.attribute}
    assert 'Resize' in inside['else_branch'] and 'Resize' not in inside['then_branch']
    assert 'Resize' not in [node.op_type for node in model.graph.node]


def test_without_the_rewriter_of_resize():
    function = answers()
    traced = Traced(
        function, [image(0, 1, 4, 15, 21), sizes((9, 12))], [name for name in REWRITERS if name != 'Resize']
    )
    for shape in ((15, 21), (9, 12)):
        logits = image(1, 1, 4, 15, 21)
        np.testing.assert_array_equal(traced.run(logits, sizes(shape))[0], function(logits, sizes(shape)).numpy())


def test_scores_that_are_an_output_are_not_chosen():
    function = answers(scores=True)
    arguments = [image(0, 1, 4, 15, 21), sizes((9, 12))]

    class Scores(Traced):
        @contextlib.contextmanager
        def context(self):
            with RewriteContext(self.rewriters) as context, exporting(ExportState(wants_logits=True)):
                yield context

    traced = Scores(function, arguments, REWRITERS)
    assert 'If' not in traced.ops()
    np.testing.assert_allclose(traced.run(*arguments)[0], function(*arguments).numpy(), atol=1e-5)  # of resizing
