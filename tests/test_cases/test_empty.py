"""Cases 13, 14, 15 and 28: nothing, much, and more or less than in the traced image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mmdeploy_lite.errors import NothingDetectedError
from mmdeploy_lite.registry import REWRITERS
from mmdeploy_lite.rewriting import FunctionRewriter
from mmdeploy_lite.tasks import Sample
from mmdeploy_lite.testing.exporting import export
from mmdeploy_lite.testing.models import TestModel, count_proposals, find_busy

from .conftest import exported_equal, tiny

Images = dict[str, np.ndarray]
KINDS = ['RetinaNet', 'YOLOX', 'Faster R-CNN', 'Mask R-CNN']


def busy_and_quiet(model: TestModel, images: Images) -> tuple[Sample, Sample, list[Sample]]:
    """An image with more than 20 detections, one with none, and all."""
    samples = model.samples(images)
    return find_busy(model, samples[:3], samples[3]), samples[3], samples


@pytest.mark.parametrize('name', KINDS)
def test_case_13_run_on_an_image_without_objects(name: str, images: Images, tmp_path: Path) -> None:
    model = tiny(name)
    busy, quiet, samples = busy_and_quiet(model, images)
    exported, _ = exported_equal(model, samples, tmp_path, traced=busy)
    outputs = exported.session.run(model.task.feeds([quiet]))
    shapes = {'dets': (1, 0, 5), 'labels': (1, 0), 'num_dets': (1,)}
    if name == 'Mask R-CNN':
        shapes['masks'] = (1, 0, *quiet.image.shape[:2])
    assert {key: value.shape for key, value in outputs.items()} == shapes
    assert outputs['num_dets'] == 0


@pytest.mark.parametrize('name', KINDS)
def test_case_14_exported_on_an_image_without_objects(name: str, images: Images, tmp_path: Path) -> None:
    """The graph finds the objects of other images: nothing was decided for the one that was traced."""
    model = tiny(name)
    busy, quiet, samples = busy_and_quiet(model, images)
    _, verification = exported_equal(model, samples, tmp_path, traced=quiet)
    assert len(verification.answers[samples.index(busy)][1]) > 20
    assert len(verification.answers[samples.index(quiet)][1]) == 0


@REWRITERS.register_module()
class DropBelowThreshold(FunctionRewriter):
    target = 'mmdet.models.utils.misc.filter_scores_and_topk'

    def __call__(self, origin, scores, score_thr, topk, results=None):
        anchors, labels = (scores > score_thr).nonzero().unbind(dim=1)
        return scores[anchors, labels], labels, anchors, {name: value[anchors] for name, value in results.items()}


def test_case_14_nothing_that_reaches_nms_is_an_error(images: Images, tmp_path: Path) -> None:
    """With candidates dropped before NMS, there is no NMS to record on this image: the guard says what to do."""
    model = tiny('RetinaNet')
    busy, quiet, samples = busy_and_quiet(model, images)
    deploy = dict(rewriters=dict(filter_scores_and_topk=dict(type='DropBelowThreshold')))
    with pytest.raises(NothingDetectedError, match=r'test_cfg\.nms') as error:
        export(model.task, [quiet, quiet], tmp_path, deploy=deploy)
    assert 'Export on an image that shows objects' in str(error.value) and 'score_thr' in str(error.value)
    exported_equal(model, samples, tmp_path, traced=busy, deploy=deploy)


@pytest.mark.parametrize('name', KINDS)
def test_case_15_batch_of_two_with_an_empty_image(name: str, images: Images, tmp_path: Path) -> None:
    """Together, swapped, and each alone: every image's answer is PyTorch's, whatever stands beside it."""
    pair = tiny(name, batch_size=2)
    samples = pair.samples({'busy': images['landscape'], 'quiet': images['empty']})
    find_busy(pair, samples[:1], samples[1])
    exported, _ = exported_equal(pair, samples, tmp_path)
    busy, quiet = samples
    together, swapped = exported.answers(busy, quiet), exported.answers(quiet, busy)
    outputs = exported.session.run(pair.task.feeds([busy, quiet]))
    count = len(together[0])
    assert outputs['num_dets'].tolist() == [count, 0] and outputs['dets'].shape == (2, count, 5) and count > 20
    assert not outputs['dets'][1].any() and (outputs['labels'][1] == -1).all()
    pair.task.batch_size = 1
    alone = [export(pair.task, [busy, quiet], tmp_path).answers(sample)[0] for sample in samples]
    for sample, answers in (
        (busy, [together[0], swapped[1], alone[0]]),
        (quiet, [together[1], swapped[0], alone[1]]),
    ):
        reference, evidence = pair.task.reference(sample)
        for answer in answers:
            comparison = pair.task.compare(sample, reference, answer, pair.task.tolerance, evidence)
            assert comparison.equal, comparison.reasons


def test_case_15_images_answered_in_different_sizes_are_not_batched(images: Images, tmp_path: Path) -> None:
    """Of one size for the network, their masks are not: each is compared with images that fit, or with itself."""
    model = tiny('Mask R-CNN', batch_size=2)
    samples = [
        model.sample_at(name, image, (128, 160)) for name, image in images.items() if name in ('landscape', 'portrait')
    ]
    assert not model.task.fit_together(*samples) and samples[0].shape == samples[1].shape
    exported_equal(model, samples, tmp_path)


@pytest.mark.parametrize('pick', [min, max])
@pytest.mark.parametrize('name', ['Faster R-CNN', 'Mask R-CNN'])
def test_case_28_more_or_fewer_proposals_than_traced(name: str, pick, images: Images, tmp_path: Path) -> None:
    model = tiny(name)
    _, _, samples = busy_and_quiet(model, images)
    counts = {sample.name: count_proposals(model.task, sample) for sample in samples}
    assert min(counts.values()) < counts['portrait'] < max(counts.values())
    traced = pick(samples, key=lambda sample: counts[sample.name])
    exported_equal(model, samples, tmp_path, traced=traced)
