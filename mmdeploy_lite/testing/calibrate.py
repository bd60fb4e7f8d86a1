"""Random weights that answer differently for different images.

Freshly initialized, a network gives every box about the same score, and no fault shows. One forward pass that rescales each
layer to unit output spread on its first call gives any architecture outputs that depend on the image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_LAYERS = (nn.Conv2d, nn.Linear, nn.ConvTranspose2d)
_CLS_STD, _CLS_MEAN = 1.5, -4.0  # the best of a million (anchor, class) pairs then scores about 0.95


@dataclass
class Calibration:
    """What was done.

    Attributes:
        rescaled: number of layers.
        classifiers: names of the layers that give class scores.
    """

    rescaled: int
    classifiers: list[str]


def calibrate(model: nn.Module, run: Callable[[], Any], seed: int = 0) -> Calibration:
    """Give the model random weights with unit output spread in every layer, in place.

    Args:
        model: in eval mode.
        run: one forward pass of the model on an image, such as ``lambda: task.test_step(sample)``.
        seed: of the weights.

    Returns:
        What was done.
    """
    generator = torch.Generator().manual_seed(seed)
    classifiers = _classifiers(model)
    for name, module in model.named_modules():
        if isinstance(module, _LAYERS):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5, generator=generator)
            if module.bias is not None:
                module.bias.data.zero_()
        elif isinstance(module, nn.modules.batchnorm._BatchNorm) and module.affine:
            # statistics that are not trivial, so that folding them into the convolution is exercised
            module.weight.data.uniform_(0.5, 1.5, generator=generator)
            module.bias.data.normal_(std=0.3, generator=generator)
            module.running_mean.normal_(std=0.3, generator=generator)
            module.running_var.uniform_(0.5, 1.5, generator=generator)
    done: set[int] = set()
    handles = [
        module.register_forward_hook(_rescale(module, name in classifiers, done))
        for name, module in model.named_modules()
        if isinstance(module, _LAYERS)
    ]
    try:
        with torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    return Calibration(len(done), sorted(classifiers))


def _rescale(module: nn.Module, classifier: bool, done: set[int]) -> Callable:
    def hook(_: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        if id(module) in done or output.numel() < 2:
            return None
        done.add(id(module))
        scale = (_CLS_STD if classifier else 1.0) / output.std().clamp(min=1e-6)
        module.weight.data *= scale
        shift = _CLS_MEAN - (output * scale).mean() if classifier and module.bias is not None else output.new_zeros(())
        if module.bias is not None:
            module.bias.data = module.bias.data * scale + shift
        return output * scale + shift

    return hook


def _classifiers(model: nn.Module) -> set[str]:
    """Names of the last layers that give class scores: named for it, and last of their kind."""
    return {
        name
        for name, module in model.named_modules()
        if isinstance(module, _LAYERS) and _looks_like_classifier(name)
    }


def _looks_like_classifier(name: str) -> bool:
    parts = [part for part in name.split('.') if not part.isdigit()]
    last = parts[-1] if parts else ''
    return (
        last.endswith(('_cls', 'conv_seg', 'cls_seg', 'cls_embed', 'cls_conv', 'class_embed', 'cls_score', 'conv_obj'))
        or last in ('cls_branches', 'logits', 'cls')
    ) and 'centerness' not in last


def shift_classes(model: nn.Module, shift: float) -> None:
    """Add ``shift`` to every class score before its sigmoid or softmax, in place: the score threshold moved, and the config not.

    Of a softmax the background, its last class, stays; so do a region proposal network and centerness, which no threshold reads.

    Args:
        model: calibrated.
        shift: added to the biases of the layers that give class scores.
    """
    modules = dict(model.named_modules())
    for name, layer in modules.items():
        if not isinstance(layer, _LAYERS) or not _looks_like_classifier(name) or 'rpn_head' in name or layer.bias is None:
            continue
        parts = name.split('.')
        owners = (modules['.'.join(parts[:depth])] for depth in range(len(parts) - 1, -1, -1))
        head = next((owner for owner in owners if hasattr(owner, 'loss_cls')), None)
        bias = layer.bias.data
        if head is not None and not getattr(head.loss_cls, 'use_sigmoid', False):
            bias = bias.view(-1, head.num_classes + 1)[:, :-1]
        bias += shift


@contextmanager
def shifted_classes(model: nn.Module, shift: float) -> Iterator[None]:
    """:func:`shift_classes`, undone on exit."""
    shift_classes(model, shift)
    try:
        yield
    finally:
        shift_classes(model, -shift)


def distinct_scores(scores: np.ndarray) -> int:
    """How many scores differ from each other by more than 1e-5."""
    ordered = np.sort(np.asarray(scores, dtype=np.float64))
    return int(bool(len(ordered))) + int((np.diff(ordered) > 1e-5).sum())
