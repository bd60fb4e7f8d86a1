"""What is done to a segmentor before it is deployed."""

from __future__ import annotations

import mmdeploy_lite.ops  # noqa: F401  (before mmcv and what imports it)

import torch  # isort: skip
from typing import Any

import numpy as np
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample
from torch import nn

from mmdeploy_lite.tasks import Sample
from mmdeploy_lite.tasks.segmentation import SemanticSegmentation, fix_random_bases


def model(rand_init: bool) -> nn.Module:
    from mmseg.models.decode_heads.ham_head import Hamburger

    torch.manual_seed(0)
    options = dict(MD_S=1, MD_R=4, train_steps=2, eval_steps=2, rand_init=rand_init)
    return nn.Sequential(Hamburger(8, options)).eval()


def test_pixels_that_hang_on_a_rounding_are_unstable() -> None:
    """A threshold inside the network, on which one side of the image lies exactly."""

    class Task(SemanticSegmentation):
        threshold = 0.5

        def __init__(self) -> None:
            self.model = nn.Linear(1, 1)

        def test_step(self, sample: Sample, double: bool = False, model: nn.Module | None = None) -> SegDataSample:
            level = sample.inputs.float()[0] / 255
            logits = torch.stack([level, (level > 100 / 255).float() * 0.5 + 0.3, level - 5])
            return SegDataSample(seg_logits=PixelData(data=logits))

    image = torch.full((3, 8, 10), 60, dtype=torch.uint8)
    image[:, :, 5:] = 100
    sample = Sample('', np.zeros((8, 10, 3), np.uint8), image, None)
    task = Task()
    unstable = task._unstable(sample, task.test_step(sample))
    assert not unstable[:, :5].any() and unstable[:, 5:].mean() > 0.8


def test_weights_are_moved_by_their_last_place_in_every_second_run() -> None:
    class Task(SemanticSegmentation):
        def __init__(self) -> None:
            self.model = nn.Linear(20, 20)

        def test_step(self, sample: Sample, double: bool = False, model: nn.Module | None = None) -> Any:
            return (model or self.model).weight.detach().clone()

    task, sample = Task(), Sample('', np.zeros((1, 1, 3), np.uint8), torch.zeros(3, 1, 1), None)
    own = task.model.weight.detach().clone()
    answers = list(task.moved_answers(sample, lambda item: item))
    assert torch.equal(task.model.weight, own)
    for run, answer in enumerate(answers):
        changed = answer != own
        assert changed.float().mean() > 0.2 if run % 2 else not changed.any()
        assert ((answer - own).abs() <= own.abs() * 5e-7).all()
    assert not torch.equal(answers[1], answers[3])


class TestRandomBases:
    def test_answers_are_the_same_from_call_to_call(self) -> None:
        x = torch.rand(2, 8, 5, 6)
        random, fixed = model(True), model(True)
        notes = fix_random_bases(fixed)
        with torch.no_grad():
            assert not torch.equal(random(x), random(x))
            assert torch.equal(fixed(x), fixed(x))
            assert torch.equal(fixed(x)[0], fixed(x[:1])[0])
        assert len(notes) == 1 and "'0' draws random bases" in notes[0]

    def test_are_drawn_from_a_seed_and_leave_the_global_one_alone(self) -> None:
        first, second = model(True), model(False)
        fix_random_bases(first)
        torch.manual_seed(5)
        expected = torch.rand(1)
        torch.manual_seed(5)
        fix_random_bases(second)
        assert torch.equal(torch.rand(1), expected)
        assert torch.equal(first[0].ham.bases, second[0].ham.bases)
        assert first.state_dict().keys() == model(True).state_dict().keys()

    def test_bases_that_are_there_stay(self) -> None:
        kept = model(False)
        kept[0].ham.register_buffer('bases', torch.ones(1, 8, 4))
        assert fix_random_bases(kept) == [] and kept[0].ham.bases.all()

    def test_other_models_are_left_alone(self) -> None:
        assert fix_random_bases(nn.Sequential(nn.Conv2d(3, 3, 1))) == []
