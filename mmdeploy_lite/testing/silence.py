"""The class scores of a model with random weights, moved so that it finds nothing in one image and much in another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .calibrate import score_layer_names


@dataclass(frozen=True)
class _ScoreLayer:
    """A layer that gives the class scores which a threshold reads."""

    layer: nn.Module
    num_outputs: int
    """Per anchor: the classes and, before a softmax, the background."""
    softmax: bool
    background_first: bool = False
    """Else it comes last."""

    @property
    def bias(self) -> Tensor:
        """(anchors, classes): a view that can be changed; without the background."""
        bias = self.layer.bias.data.view(-1, self.num_outputs)
        return (bias[:, 1:] if self.background_first else bias[:, :-1]) if self.softmax else bias

    def rows(self, output: Tensor) -> Tensor:
        """(rows, anchors, classes and background, last) of what the layer returned."""
        rows = output.movedim(1, -1) if isinstance(self.layer, nn.Conv2d) else output
        rows = rows.reshape(-1, rows.shape[-1] // self.num_outputs, self.num_outputs)
        return rows.roll(-1, dims=-1) if self.background_first else rows

    def shift_below(self, rows: Tensor, log_odds: Tensor) -> Tensor:
        """(anchors, classes): what brings the best log-odds of each class to ``log_odds``, or below."""
        if not self.softmax:
            return log_odds - rows.amax(dim=0)
        # every class counts in the odds of the others: towards it in steps, then all down together till it holds
        shift = torch.zeros_like(rows[0, :, :-1])
        for step in range(200):
            logits = torch.cat([rows[..., :-1] + shift, rows[..., -1:]], dim=-1)
            missing = log_odds - logits.softmax(-1)[..., :-1].logit().amax(dim=0)
            if step < 30:
                shift = shift + missing * 0.5
            elif missing.amin() >= 0:
                break
            else:
                shift = shift + missing.amin() - 0.05
        return shift


def _score_layers(model: nn.Module) -> list[_ScoreLayer]:
    """Of the last stage: not those of a region proposal network, nor objectness, which no threshold reads alone."""
    modules, classifiers = dict(model.named_modules()), score_layer_names(model)
    found = []
    for name, layer in modules.items():
        if not isinstance(layer, (nn.Conv2d, nn.Linear)) or name not in classifiers or layer.bias is None:
            continue
        if 'rpn_head' in name or 'obj' in name.split('.')[-2 if name[-1].isdigit() else -1]:
            continue
        parts = name.split('.')
        owners = (modules['.'.join(parts[:depth])] for depth in range(len(parts) - 1, -1, -1))
        head = next((owner for owner in owners if hasattr(owner, 'loss_cls')), None)
        softmax = head is not None and not getattr(head.loss_cls, 'use_sigmoid', False)
        softmax = softmax and len(layer.bias) % (head.num_classes + 1) == 0  # not every sigmoid loss says so
        outputs = len(layer.bias) if head is None else head.num_classes + softmax
        if len(layer.bias) % outputs:  # Seesaw loss: classes and objectness, which no one shift silences
            continue
        found.append(_ScoreLayer(layer, outputs, softmax, type(head).__name__ == 'MultiInstanceBBoxHead'))
    return found


def shift_classes(model: nn.Module, shift: float) -> None:
    """Add ``shift`` to every class score before its sigmoid or softmax, in place: the score threshold moved, and the
    config not.

    Of a softmax the background stays; so do a region proposal network and objectness, which no threshold reads.
    """
    for scores in _score_layers(model):
        scores.bias.add_(shift)


def silence(model: nn.Module, run: Callable[[], Any], threshold: float, margin: float = 0.02) -> None:
    """Shift the bias of each class, in place, until no class passes the threshold on an image.

    Each class by its own amount: its best score on this image then lies just below the threshold, and on another image
    every class that responds more strongly to something passes. One shift for all classes does not do with random
    weights: the best of many thousand scores is nearly as high on a gray image as on any other, wherever a
    normalization follows the image's contrast.

    Args:
        model: calibrated.
        run: one forward pass on the image that must not be detected in.
        threshold: probability that a class score must pass.
        margin: of log-odds, how far below it the best stays.
    """
    layers = _score_layers(model)
    seen: dict[nn.Module, list[Tensor]] = {scores.layer: [] for scores in layers}
    handles = [layer.register_forward_hook(lambda module, args, output: seen[module].append(output)) for layer in seen]
    try:
        with torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    wanted = torch.logit(torch.tensor(threshold)) - margin
    for scores in layers:
        if outputs := seen[scores.layer]:
            scores.bias.add_(scores.shift_below(torch.cat([scores.rows(output) for output in outputs]), wanted))


def distinct_scores(scores: np.ndarray) -> int:
    """How many scores differ from each other by more than 1e-5."""
    ordered = np.sort(np.asarray(scores, dtype=np.float64))
    return int(bool(len(ordered))) + int((np.diff(ordered) > 1e-5).sum())
