"""Primitives of mmcv.ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import NothingDetectedError, UnsupportedError
from ..export.operators import REJECTED, non_max_suppression, roi_align
from ..export.repeats import soft_nms
from ..export.shapes import python_shape
from ..export.tracing import note_rejected
from ..registry import REWRITERS
from ..rewriting import FunctionRewriter

EMPTY_HINT = (
    'export on an image that shows objects the model finds, with a trained checkpoint, '
    'or lower score_thr in the test config (--cfg-options model.test_cfg.score_thr=0.01)'
)


@REWRITERS.register_module()
class BatchedNMS(FunctionRewriter):
    """One ``NonMaxSuppression`` node, or a ``Loop`` for ``soft_nms``.

    The original's ``if boxes.shape[0] < split_thr`` would be baked and its loop unrolled.

    Classes are kept apart by the original's own offset, computed from the boxes that are not rejected, so that the
    IoUs round as the original's do.

    Raises:
        NothingDetectedError: no box at all while tracing. The libraries skip NMS then, and the graph would hold
            constants.
        UnsupportedError: an NMS of another type, such as ``nms_match``; never replaced by plain NMS.
    """

    target = 'mmcv.ops.nms.batched_nms'

    def check(self, model: Any) -> None:
        for place, nms_cfg in find_nms_configs(getattr(model, 'test_cfg', None)).items():
            if nms_kind(nms_cfg) == 'soft_nms':
                soft_nms_arguments(nms_cfg)
            else:
                nms_arguments(nms_cfg, place)

    def __call__(
        self,
        origin: Callable,
        boxes: Tensor,
        scores: Tensor,
        idxs: Tensor,
        nms_cfg: dict | None,
        class_agnostic: bool = False,
    ) -> tuple[Tensor, Tensor]:
        if python_shape(boxes)[0] == 0:
            raise NothingDetectedError(
                f'no box reached NMS while tracing, so it could not be recorded in the graph: {EMPTY_HINT}'
            )
        note_rejected(False)
        if nms_cfg is None:
            dets, inds = origin(boxes, scores, idxs, None)
            accepted = (dets[:, 4] > REJECTED).nonzero().squeeze(1)
            return dets[accepted], inds[accepted]
        soft = nms_kind(nms_cfg) == 'soft_nms'
        cfg = soft_nms_arguments(nms_cfg) if soft else nms_arguments(nms_cfg)
        if python_shape(boxes)[-1] != 4:
            raise UnsupportedError(
                f'NMS of boxes with {python_shape(boxes)[-1]} coordinates (rotated boxes) is not supported'
            )
        accepted = scores > REJECTED
        agnostic = bool(cfg.get('class_agnostic', class_agnostic))
        apart = boxes + _class_offsets(boxes, idxs, accepted, cfg['split_thr'], agnostic)[:, None]
        if soft:
            arguments = [cfg[name] for name in ('iou_threshold', 'sigma', 'min_score', 'method', 'offset')]
            keep, scores = soft_nms(apart, scores, *arguments)
            return torch.cat([boxes[keep], scores[:, None]], dim=-1), keep
        # mmcv neither reorders the corners of a box of negative size nor lets it suppress anything: as a box of no area
        # it does not in ONNX
        apart = torch.cat([apart[:, :2], torch.maximum(apart[:, :2], apart[:, 2:] + cfg['offset'])], dim=1)
        keep = non_max_suppression(apart, scores, cfg['iou_threshold'], cfg['score_threshold'], cfg['max_num'])
        return torch.cat([boxes[keep], scores[keep][:, None]], dim=-1), keep


def find_nms_configs(test_cfg: Any, path: str = 'test_cfg') -> dict[str, dict[str, Any]]:
    """Every ``nms`` of a model's test config, by where it stands (``test_cfg.rpn.nms``)."""
    found: dict[str, dict[str, Any]] = {}
    if isinstance(test_cfg, Mapping):
        for key, value in test_cfg.items():
            if key == 'nms' and isinstance(value, Mapping):
                found[f'{path}.nms'] = dict(value)
            else:
                found.update(find_nms_configs(value, f'{path}.{key}'))
    return found


def nms_arguments(nms_cfg: dict[str, Any], place: str = 'test_cfg.nms') -> dict[str, Any]:
    """mmcv's NMS config with its defaults filled in.

    Args:
        nms_cfg: of the test config.
        place: where it stands in the model config, for messages.

    Raises:
        UnsupportedError: a type other than ``nms``, or an argument that ``mmcv.ops.nms`` does not take.
    """
    cfg = {'type': 'nms', 'offset': 0, 'score_threshold': None, 'max_num': -1, 'split_thr': 10000, **nms_cfg}
    kind = nms_kind(cfg)
    del cfg['type']
    if kind != 'nms':
        raise UnsupportedError(
            f"the test config asks for nms type '{kind}'; only 'nms' and 'soft_nms' can be exported exactly, and"
            ' another is not put in its place. If you accept other results, override it:'
            f' --cfg-options model.{place}.type=nms'
        )
    if 'iou_thr' in cfg:  # mmcv's deprecated name
        cfg.setdefault('iou_threshold', cfg.pop('iou_thr'))
    known = {'iou_threshold', 'offset', 'score_threshold', 'max_num', 'split_thr', 'class_agnostic'}
    if unknown := set(cfg) - known:
        raise UnsupportedError(
            f'the nms config {dict(nms_cfg)} has {sorted(unknown)}, which mmcv.ops.nms does not take'
        )
    if 'iou_threshold' not in cfg:
        raise UnsupportedError(f'the nms config {dict(nms_cfg)} has no iou_threshold')
    if not (cfg['score_threshold'] or 0) > 0:  # mmcv filters only then
        cfg['score_threshold'] = None
    return cfg


def nms_kind(nms_cfg: Mapping[str, Any]) -> str:
    """The type of an NMS config: a name, also where the config has the function itself."""
    kind = nms_cfg.get('type', 'nms')
    return kind if isinstance(kind, str) else getattr(kind, '__name__', repr(kind))


_SOFT_METHODS = {'naive': 0, 'linear': 1, 'gaussian': 2}


def soft_nms_arguments(nms_cfg: Mapping[str, Any]) -> dict[str, Any]:
    """mmcv's ``soft_nms`` config with its defaults filled in, and ``method`` as its number.

    Raises:
        UnsupportedError: an argument that ``mmcv.ops.soft_nms`` does not take.
    """
    defaults = {'iou_threshold': 0.3, 'sigma': 0.5, 'min_score': 1e-3, 'method': 'linear', 'offset': 0}
    ours = {'split_thr': 10000}
    cfg = {**defaults, **ours, **nms_cfg}
    del cfg['type']
    if 'iou_thr' in cfg:  # mmcv's deprecated name
        cfg['iou_threshold'] = cfg.pop('iou_thr')
    if unknown := {*cfg} - {*defaults, *ours, 'class_agnostic'}:
        raise UnsupportedError(
            f'the nms config {dict(nms_cfg)} has {sorted(unknown)}, which mmcv.ops.soft_nms does not take'
        )
    if cfg['method'] not in _SOFT_METHODS:
        raise UnsupportedError(
            f'the nms config {dict(nms_cfg)} has method={cfg["method"]!r}; known are {", ".join(_SOFT_METHODS)}'
        )
    return {**cfg, 'method': _SOFT_METHODS[cfg['method']]}


def limited_nms(nms_cfg: Mapping[str, Any], max_num: int) -> dict[str, Any]:
    """The NMS config with a limit of its own; ``soft_nms`` knows none, and whoever calls cuts its answer off."""
    if nms_kind(nms_cfg) != 'nms':
        return {**nms_cfg}
    return {**nms_cfg, 'max_num': tighter(nms_arguments(dict(nms_cfg))['max_num'], max_num)}


def tighter(limit: int, other: int) -> int:
    """The smaller of two limits, where none or negative means no limit."""
    return min((value for value in (limit, other) if value > 0), default=-1)


def _class_offsets(boxes: Tensor, idxs: Tensor, accepted: Tensor, split_thr: int, agnostic: bool) -> Tensor:
    """(n,) what is added to each box's coordinates so that boxes of two classes do not meet; zeros where they may.

    From ``split_thr`` boxes on mmcv runs NMS class by class, also for a class-agnostic NMS. Then coordinates below
    zero, which its spacing does not cover, must not meet either.
    """
    accepted = accepted[:, None]
    lowest = boxes.new_full((1, 1), REJECTED)
    # REJECTED keeps the maximum defined when no box is left; of each box first, which has the choice made once a box
    upper = torch.cat([torch.where(accepted, boxes.max(dim=1, keepdim=True)[0], lowest), lowest]).max()
    lower = torch.cat([torch.where(accepted, boxes.min(dim=1, keepdim=True)[0], -lowest), -lowest]).min()
    together = torch.zeros_like(upper) if agnostic else upper + 1
    spacing = torch.where(accepted.sum() < split_thr, together, upper - lower.clamp(max=0) + 1)
    return idxs.to(boxes) * spacing


@REWRITERS.register_module()
class RoIAlign(FunctionRewriter):
    """One standard ``RoiAlign`` node; mmcv's own export gives an operator of its custom domain."""

    target = 'mmcv.ops.roi_align.roi_align'

    def __call__(
        self,
        origin: Callable,
        features: Tensor,
        rois: Tensor,
        output_size: int | tuple[int, int],
        spatial_scale: float = 1.0,
        sampling_ratio: int = 0,
        pool_mode: str = 'avg',
        aligned: bool = True,
    ) -> Tensor:
        if pool_mode != 'avg':
            raise UnsupportedError(f"RoIAlign with pool_mode='{pool_mode}' cannot be exported exactly; only 'avg' can")
        size = (output_size, output_size) if isinstance(output_size, int) else tuple(output_size)
        # mmcv adapts to the RoI's size for any number below 1, ONNX for 0
        return roi_align(features, rois, size, spatial_scale, max(sampling_ratio, 0), aligned)
