"""Focal loss against its formula."""

from __future__ import annotations

import math

import pytest
import torch
from mmcv.ops import sigmoid_focal_loss

LOGITS = torch.tensor([[-3.0, 0, 2], [0.5, -0.5, 1], [1, 7, -7], [0, 1, 2]], dtype=torch.float64)
TARGET = torch.tensor([0, 2, 3, 1])  # 3 is background


def formula(logits: list[list[float]], target: list[int], gamma: float, alpha: float) -> list[list[float]]:
    losses = []
    for row, label in zip(logits, target, strict=True):
        losses.append([])
        for column, logit in enumerate(row):
            p = 1 / (1 + math.exp(-logit))
            if column == label:
                losses[-1].append(-alpha * (1 - p) ** gamma * math.log(p))
            else:
                losses[-1].append(-(1 - alpha) * p**gamma * math.log(1 - p))
    return losses


@pytest.mark.parametrize(('gamma', 'alpha'), [(2.0, 0.25), (1.5, 0.6), (0.0, 0.5)])
def test_formula(gamma: float, alpha: float) -> None:
    expected = torch.tensor(formula(LOGITS.tolist(), TARGET.tolist(), gamma, alpha), dtype=torch.float64)
    for reduction, value in (('none', expected), ('sum', expected.sum()), ('mean', expected.sum() / 4)):
        got = sigmoid_focal_loss(LOGITS, TARGET, gamma, alpha, None, reduction)
        torch.testing.assert_close(got, value, rtol=1e-10, atol=0)


def test_class_weights() -> None:
    target = TARGET.clamp(max=2)
    weight = torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64)
    expected = torch.tensor(formula(LOGITS.tolist(), target.tolist(), 2.0, 0.25), dtype=torch.float64)
    got = sigmoid_focal_loss(LOGITS, target, 2.0, 0.25, weight, 'none')
    torch.testing.assert_close(got, expected * weight[target][:, None])


@pytest.mark.parametrize('gamma', [2.0, 1.5])
@pytest.mark.parametrize('reduction', ['sum', 'mean'])
def test_gradient(gamma: float, reduction: str) -> None:
    logits = LOGITS.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: sigmoid_focal_loss(x, TARGET, gamma, 0.25, None, reduction), logits)


def test_extreme_logits() -> None:
    logits = torch.tensor([[200.0, -200.0]], requires_grad=True)
    loss = sigmoid_focal_loss(logits, torch.tensor([1]), 2.0, 0.25, None, 'none')
    torch.testing.assert_close(loss, torch.tensor([[0.75 * 200, 0.25 * 200]]))
    loss.sum().backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[0.75, -0.25]]))
