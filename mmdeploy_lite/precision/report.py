"""What a less exact file costs, and whether that is too much."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..check.report import FileFacts
from .agreement import Agreement, share

_MAIN = re.compile(r'(^|[/_])(mAP|AP|mIoU|PQ)$')


def main_metrics(metrics: Mapping[str, float]) -> list[str]:
    """Names of those that models are told apart by; all where none has a known name."""
    return [name for name in metrics if _MAIN.search(name)] or list(metrics)


@dataclass
class PrecisionReport:
    """A less exact file beside the exact one.

    Attributes:
        type: of the precision.
        file: that was made.
        exact_bytes: size of the exact one.
        max_loss: of mAP or mIoU, from 0 to 1.
        min_agreement: from 0 to 1, where nothing else was measured.
        details: of the conversion.
        agreement: with PyTorch, one per image that the user gave.
        images: of the test dataset; 0 where it was not measured on.
        before: metric to value, of the exact file.
        after: the same of this one.
        not_measured: why there are no metrics.
    """

    type: str
    file: FileFacts
    exact_bytes: int
    max_loss: float
    min_agreement: float
    details: Mapping[str, Any] = field(default_factory=dict)
    agreement: list[Agreement] = field(default_factory=list)
    images: int = 0
    before: Mapping[str, float] = field(default_factory=dict)
    after: Mapping[str, float] = field(default_factory=dict)
    not_measured: str = ''

    @property
    def main(self) -> list[str]:
        """Names of the metrics that decide."""
        return main_metrics(self.before)

    def loss_of(self, name: str) -> float:
        """What a metric lost, as a part of 1: those above 1 are percentages."""
        before, after = self.before[name], self.after.get(name, math.nan)
        return (before - after) / (100 if max(abs(before), abs(after)) > 1 else 1)

    @property
    def loss(self) -> float | None:
        """The largest of the metrics that decide; None where nothing was measured."""
        losses = [self.loss_of(name) for name in self.main]
        return None if not losses else math.nan if any(map(math.isnan, losses)) else max(losses)

    @property
    def share(self) -> float | None:
        """Agreement over all images; None where neither side answered anything."""
        return share(self.agreement)

    @property
    def accepted(self) -> bool:
        """The loss is within its limit; or, where it was not measured, the agreement is."""
        if self.loss is not None:
            return self.loss <= self.max_loss + 1e-9
        return self.share is not None and self.share >= self.min_agreement

    def summary(self) -> str:
        """The verdict in one line."""
        verdict = 'accepted' if self.accepted else 'refused'
        if self.loss is not None:
            name = max(self.main, key=self.loss_of)
            return (
                f'{self.type} {verdict}: {name} {self.before[name]:.4g} -> {self.after[name]:.4g} on'
                f' {self.images} images, loss {self.loss:.4f} (limit {self.max_loss:g})'
            )
        if self.share is None:
            return (
                f'{self.type} refused: nothing was found in the images, by PyTorch or the file, so that nothing is'
                ' known of the loss; give an image with objects'
            )
        return (
            f'{self.type} {verdict}: {self.share:.1%} of the {self.agreement[0].what} agree with PyTorch'
            f' (limit {self.min_agreement:.0%}); mAP or mIoU was not measured'
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain json types."""
        loss = self.loss
        return dict(
            type=self.type,
            accepted=self.accepted,
            summary=self.summary(),
            file=self.file.to_dict(),
            exact_bytes=self.exact_bytes,
            details=dict(self.details),
            limits=dict(max_loss=self.max_loss, min_agreement=self.min_agreement),
            agreement=[item.to_dict() for item in self.agreement],
            share=self.share,
            images=self.images,
            before={name: _number(value) for name, value in self.before.items()},
            after={name: _number(value) for name, value in self.after.items()},
            loss=None if loss is None else _number(loss),
            not_measured=self.not_measured,
        )

    def print(self, console: Console) -> None:
        """The agreement, what was measured, and the verdict in the last line."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column(f'{self.type} and PyTorch', overflow='fold')
        detections = any(item.what == 'detections' for item in self.agreement)
        table.add_column("PyTorch's that the file has" if detections else 'as PyTorch', justify='right')
        if detections:
            table.add_column("the file's that PyTorch has", justify='right')
            table.add_column('score diff', justify='right')
        for item in self.agreement:
            cells = [item.image, f'{item.found} of {item.reference}']
            if detections:
                cells += [f'{item.confirmed} of {item.answered}', f'{item.worst_score:.3f}']
            table.add_row(*map(Text, cells))
        console.print(table)
        for name in self.main if self.before else ():
            line = f'{name}: {self.before[name]:.4f} before, {self.after.get(name, math.nan):.4f} after'
            console.print(f'{line}, on {self.images} images', highlight=False)
        if self.not_measured:
            line = f'mAP or mIoU was not measured: {self.not_measured}'
            console.print(Text(line, style='yellow'))
        console.print(Text(self.summary(), style='green' if self.accepted else 'bold red'))


def _number(value: float) -> float | None:
    """json has no NaN."""
    return None if math.isnan(value) else round(float(value), 6)
