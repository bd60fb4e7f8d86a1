"""From a task to an audited graph: what stops it, what it says, what it leaves behind."""

from __future__ import annotations

import copy
import sys

import numpy as np
import onnxruntime
import pytest
import torch

from mmdeploy_lite.errors import AuditError, NothingDetectedError, RewriteError, UnsupportedError
from mmdeploy_lite.export import TorchScriptExporter
from mmdeploy_lite.export.allowed import ALLOWED, allowed_lines
from mmdeploy_lite.export.build import build_graph
from mmdeploy_lite.registry import REWRITERS
from mmdeploy_lite.rewriting import FunctionRewriter, build_rewriters
from mmdeploy_lite.testing.exporting import settings_of
from mmdeploy_lite.testing.images import scene
from mmdeploy_lite.testing.models import zoo_model
from mmdeploy_lite.testing.tiny import narrow_fcn, narrow_pyramid

SEGMENTOR = (
    'mmseg::fcn/fcn_r18-d8_4xb2-80k_cityscapes-512x1024.py',
    narrow_fcn(4),
)
DETECTOR = (
    'mmdet::faster_rcnn/faster-rcnn_r18_fpn_8xb8-amp-lsj-200e_coco.py',
    {
        **narrow_pyramid(4),
        'model.rpn_head.in_channels': 8,
        'model.rpn_head.feat_channels': 8,
        'model.roi_head.bbox_roi_extractor.out_channels': 8,
        'model.roi_head.bbox_head.in_channels': 8,
        'model.roi_head.bbox_head.fc_out_channels': 16,
        'model.roi_head.bbox_head.num_classes': 5,
        'model.test_cfg.rpn.nms_pre': 100,
        'model.test_cfg.rpn.max_per_img': 50,
    },
)
SCALE = (96, 64)


def prepared(config, options):
    model = zoo_model(config, options, scale=SCALE)
    return model.task, model.samples({str(seed): scene(seed, SCALE[1], SCALE[0]) for seed in (1, 2)})


@pytest.fixture(scope='module')
def segmentor():
    return prepared(*SEGMENTOR)


@pytest.fixture(scope='module')
def detector():
    return prepared(*DETECTOR)


@pytest.fixture
def build():
    """Builds the graph of a prepared task; ``rewriters`` are instances added to the default ones."""

    def run(prepared, rewriters=(), allowed=ALLOWED, exporter=None, required=(), dynamic=True, **deploy):
        task, samples = prepared
        built = build_rewriters(settings_of(task, deploy).rewriters, REWRITERS)
        built.update(rewriters)
        return build_graph(task, samples, exporter or TorchScriptExporter(), built, required, dynamic, allowed)

    return run


def rewriter(path, replace):
    class Replaces(FunctionRewriter):
        target = path

        def __call__(self, origin, *args, **kwargs):
            return replace(origin, *args, **kwargs)

    return Replaces()


FCN_HEAD = 'mmseg.models.decode_heads.fcn_head.FCNHead.forward'


def test_answers_and_report(segmentor, build):
    gone = rewriter('mmseg.models.utils.wrappers.Upsample.forward', lambda origin, *args: origin(*args))
    graph = build(segmentor, {'mine': gone})
    task, samples = segmentor
    session = onnxruntime.InferenceSession(graph.model.SerializeToString(), providers=['CPUExecutionProvider'])
    assert [value.name for value in session.get_inputs()] == ['image', 'ori_shape']
    assert [value.name for value in session.get_outputs()] == ['seg_map']
    assert graph.model.graph.output[0].type.tensor_type.shape.dim[1].dim_param == 'map_height'
    for sample in samples:
        seg_map = session.run(None, task.feeds([sample]))[0]
        assert (seg_map[0] == task.reference(sample)[0].seg_map).mean() > 0.999
        assert len(np.unique(seg_map)) > 3
    assert 'mmseg.models.decode_heads.decode_head.predict_by_feat' in graph.fired['resize']
    assert {'mine', 'slide_inference'} <= set(graph.never_fired)
    assert graph.targets['mine'] == ('mmseg.models.utils.wrappers.Upsample.forward',)
    assert graph.skipped == {}


def test_same_model_gives_the_same_bytes(segmentor, build):
    one, two = (build(segmentor).model.SerializeToString(deterministic=True) for _ in range(2))
    assert one == two


def test_head_detoured_through_numpy(segmentor, build):
    def detour(origin, head, inputs):
        return torch.from_numpy(origin(head, inputs).numpy())

    with pytest.raises(AuditError) as caught:
        build(segmentor, {'mine': rewriter(FCN_HEAD, detour)})
    text = str(caught.value)
    assert text.startswith('the exported graph is not what was traced:\n  - ')
    assert f'{__file__}:' in text and 'origin(head, inputs).numpy()' in text
    assert "the output 'seg_map' does not depend on the image" in text
    assert "module 'model.decode_head.convs.0.conv' (Conv2d) ran while tracing and is not in the graph" in text
    assert 'auxiliary_head' not in text


def test_branch_on_a_traced_value(segmentor, build):
    def branch(origin, head, inputs):
        output = origin(head, inputs)
        return output if output.mean() > 0 else output * 2  # baked

    mine = {'mine': rewriter(FCN_HEAD, branch)}
    with pytest.raises(AuditError, match='frozen in the graph: .*# baked'):
        build(segmentor, mine)
    entry = dict(file='test_build.py', line='output.mean() > 0', reason='a test')
    assert build(segmentor, mine, allowed=allowed_lines([entry])).fired['mine']


def test_foreign_operator(segmentor, build):
    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def symbolic(g, x):
            return g.op('mine::Custom', x).setType(x.type())

    with pytest.raises(AuditError, match='mine::Custom is not a standard ONNX operator'):
        build(segmentor, {'mine': rewriter(FCN_HEAD, lambda origin, *args: Custom.apply(origin(*args)))})


def test_what_fails_leaves_nothing_replaced(segmentor, build):
    from mmseg.models.decode_heads import FCNHead

    def fail(origin, *args):
        raise ZeroDivisionError

    before = (
        FCNHead.forward,
        torch.onnx.is_in_onnx_export,
        torch.Tensor.squeeze,
        dict(vars(sys.modules['mmseg.models.utils'])),
    )
    with pytest.raises(Exception, match='ZeroDivisionError'):
        build(segmentor, {'mine': rewriter(FCN_HEAD, fail)})
    after = (
        FCNHead.forward,
        torch.onnx.is_in_onnx_export,
        torch.Tensor.squeeze,
        dict(vars(sys.modules['mmseg.models.utils'])),
    )
    assert before == after


def test_target_of_a_user_that_does_not_exist(segmentor, build):
    with pytest.raises(RewriteError, match="rewriter 'mine' .*'my_project' is not installed"):
        build(segmentor, {'mine': rewriter('my_project.heads.Head.forward', None)}, required=['mine'])


class NeverTraces:
    def export(self, *args):
        raise AssertionError('must be refused before anything is traced')


@pytest.mark.parametrize('part', ['rpn', 'rcnn'])
def test_other_nms_is_refused_before_tracing(detector, build, part, monkeypatch):
    task, _ = detector
    test_cfg = copy.deepcopy(task.model.test_cfg)
    test_cfg[part].nms.type = 'nms_match'
    monkeypatch.setattr(task.model, 'test_cfg', test_cfg)
    with pytest.raises(UnsupportedError, match="'nms_match'; only 'nms' and 'soft_nms' can be"):
        build(detector, exporter=NeverTraces())


def test_slide_is_a_batch_of_windows_or_a_loop_over_them(segmentor, build, monkeypatch):
    task, _ = segmentor
    test_cfg = copy.deepcopy(task.model.test_cfg)
    test_cfg.update(mode='slide', crop_size=(48, 48), stride=(32, 32))
    monkeypatch.setattr(task.model, 'test_cfg', test_cfg)
    for dynamic in (True, False):
        graph = build(segmentor, dynamic=dynamic)
        assert sum(graph.fired['slide_inference'].values()) >= 1
        assert ('Loop' in {node.op_type for node in graph.model.graph.node}) == dynamic


class TestEmptyBoxGuard:
    def test_every_nms_is_recorded(self, detector, build):
        graph = build(detector)
        assert len(graph.fired['batched_nms']) == len(detector[0].nms_configs()) == 2
        assert [node.op_type for node in graph.model.graph.node].count('NonMaxSuppression') == 2

    def test_nms_that_was_not_recorded(self, detector, build):
        """The libraries' own code leaves NMS out where it has no boxes."""

        def nothing(origin, boxes, *args, **kwargs):
            return boxes[:0, :5], boxes[:0, 0].long()

        path = 'mmdet.models.layers.bbox_nms.multiclass_nms'
        with pytest.raises(NothingDetectedError) as caught:
            build(detector, {'multiclass_nms': rewriter(path, nothing)})
        text = str(caught.value)
        assert 'NMS in test_cfg.rpn.nms, test_cfg.rcnn.nms, but only 1 of 2 were recorded' in text
        assert 'an image that shows objects' in text and 'trained checkpoint' in text and 'score_thr' in text

    def test_no_box_reaches_nms(self, detector, build):
        def none(origin, boxes, scores, idxs, *args, **kwargs):
            return origin(boxes[:0], scores[:0], idxs[:0], *args, **kwargs)

        task, _ = detector
        with pytest.raises(NothingDetectedError, match='no box reached NMS while tracing'):
            build(detector, {'none': rewriter('mmcv.ops.nms.batched_nms', none)})


def test_image_bound_as_a_keyword_argument(segmentor, build):
    """The wrapper hands the image on by name, bound while tracing."""
    task, samples = segmentor
    frozen = samples[0].inputs.float()[None]

    def bound(origin, preprocess, image):
        return origin(preprocess, frozen)

    with pytest.raises(AuditError, match='lost its input|does not depend on the image'):
        build(segmentor, {'mine': rewriter('mmdeploy_lite.export.preprocess.InGraphPreprocess.forward', bound)})
