"""Focal loss on sigmoid scores.

Lin et al., Focal Loss for Dense Object Detection, https://arxiv.org/abs/1708.02002.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ['sigmoid_focal_loss_backward', 'sigmoid_focal_loss_forward']


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Write the loss of each sample and class, not reduced, to ``output``.

    Args:
        input (Tensor): (N, C), logits.
        target (Tensor): (N,) int64, the class of each sample; C (or any other number outside 0..C-1) is background.
        weight (Tensor): (C,), a factor for the samples of each class, or empty for none.
        output (Tensor): (N, C), written.
        gamma (float): The focusing exponent.
        alpha (float): The weight of positives; negatives have ``1 - alpha``.

    Raises:
        IndexError: If there are weights and a target is not a class.
    """
    positive, p, log_p, log_not_p = _parts(input, target)
    loss = torch.where(
        positive,
        -alpha * (1 - p) ** gamma * log_p,
        -(1 - alpha) * p**gamma * log_not_p,
    )
    output.copy_(_weighted(loss, target, weight))


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Write the derivative of each loss by its logit to ``grad_input``; see :func:`sigmoid_focal_loss_forward`.

    Args:
        grad_input (Tensor): (N, C), written.
    """
    positive, p, log_p, log_not_p = _parts(input, target)
    grad = torch.where(
        positive,
        -alpha * (1 - p) ** gamma * (1 - p - gamma * p * log_p),
        -(1 - alpha) * p**gamma * (gamma * (1 - p) * log_not_p - p),
    )
    grad_input.copy_(_weighted(grad, target, weight))


def _parts(input: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Which elements are positive, the probability p, log(p) and log(1 - p): all (N, C)."""
    positive = target[:, None] == torch.arange(input.size(1), device=input.device)
    return positive, input.sigmoid(), F.logsigmoid(input), F.logsigmoid(-input)


def _weighted(values: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    return values * weight[target][:, None] if weight.numel() else values
