"""Lines of the libraries at which the tracer may warn, and why nothing is frozen there.

A Python ``if``, ``int()``, ``len()`` or loop over a traced value is frozen as it fell for one image; the tracer's
warning is the only sign. Lines are named by their text, not their number, which changes from release to release.
Assertions need no entry.
"""

from __future__ import annotations

import ast
import fnmatch
import functools
import linecache
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError
from .exporter import TracedWarning


@dataclass(frozen=True)
class AllowedLine:
    """One line, or several that look alike.

    Attributes:
        file: the last parts of the source file's path, with forward slashes; ``*`` stands for any characters, '' for
            every file.
        line: a part of the line's text; '' for every line of the file.
        reason: why the frozen value is the same for every image.
        truth: what ``torch.export``, which knows no values, is to take the tensor for that is asked there, so that the
            answer is right for every image. None where no tensor is asked.
    """

    file: str
    line: str
    reason: str
    truth: bool | None = None

    def allows(self, filename: str, text: str) -> bool:
        """Whether this entry is about that line."""
        path = '/' + filename.replace('\\', '/')
        return (not self.file or fnmatch.fnmatchcase(path, f'*/{self.file}')) and self.line in text


_DENSE_HEADS, _ROI_HEADS = 'mmdet/models/dense_heads', 'mmdet/models/roi_heads'
_CHANNELS = 'channels and other sizes that no image changes'
_PROPOSALS = 'of Sparse R-CNN, whose number of proposals is fixed'
_POOLED = 'RoIs are pooled to fixed sizes'
_ONE_IMAGE = 'the RoI head runs image by image: all RoIs are of this one, or there are none'
_NO_MASKS = 'no detections: as many masks come out'
_BATCH = 'the batch size is fixed'
_NEUTRAL = 'zeros at the border of a map smaller than the kernel, where the samples of any map are zero'
_LOCATION = 'GuidedAnchors finds a location while tracing'
_LEVELS = 'the number of levels is fixed'

ALLOWED: tuple[AllowedLine, ...] = (
    *(
        AllowedLine('', f'in range({count})', 'the batch size is fixed')
        for count in ('num_imgs', 'num_images', 'batch_size', 'bs')
    ),
    AllowedLine(f'{_DENSE_HEADS}/*.py', 'in range(hidden_states.shape[0])', 'the number of decoder layers is fixed'),
    AllowedLine('torch/nn/functional.py', 'if size_prods == 1', 'refuses to normalize one value; only in training'),
    AllowedLine('torch/nn/functional.py', 'q_scaled = q ', 'of attention: the number of channels'),
    AllowedLine(f'{_DENSE_HEADS}/*detr_head.py', 'len(cls_score)', 'the number of queries is fixed'),
    AllowedLine(
        'mmengine/structures/instance_data.py', 'len(', 'InstanceData only compares lengths; see len(results) of RPN'
    ),
    AllowedLine('mmengine/structures/pixel_data.py', '', 'PixelData only compares sizes'),
    AllowedLine('mmengine/structures/base_data_element.py', '', 'only looks at types'),
    AllowedLine(
        'mmdet/models/task_modules/coders/delta_xywh_bbox_coder.py',
        'if num_bboxes == 0',
        'Delta2BBox hands it a row more than there are boxes',
    ),
    AllowedLine(
        f'{_DENSE_HEADS}/base_dense_head.py',
        'results.bboxes.numel() > 0',
        'the number of candidates is fixed; none at all stops the export',
    ),
    AllowedLine(f'{_DENSE_HEADS}/rpn_head.py', 'results.bboxes.numel() > 0', 'as in base_dense_head.py'),
    AllowedLine(f'{_DENSE_HEADS}/yolox_head.py', 'results.bboxes.numel() > 0', 'as in base_dense_head.py'),
    AllowedLine(
        f'{_DENSE_HEADS}/rtmdet_ins_head.py',
        'results.bboxes.numel() > 0',
        'the number of candidates is fixed; none at all stops the export',
    ),
    AllowedLine(f'{_DENSE_HEADS}/rtmdet_ins_head.py', 'if num_inst < 1', _NO_MASKS),
    AllowedLine(
        'maskformer_fusion_head.py', 'for mask_cls_result, mask_pred_result, meta in zip(', 'the batch size is fixed'
    ),
    AllowedLine('mmdet/models/utils/misc.py', 'map(pfunc, *args)', 'as many images, or levels, every time'),
    AllowedLine(f'{_DENSE_HEADS}/condinst_head.py', 'if num_inst == 0', _NO_MASKS),
    AllowedLine(f'{_DENSE_HEADS}/condinst_head.py', 'if bboxes.shape[0] == 0', _NO_MASKS),
    AllowedLine(f'{_DENSE_HEADS}/yolact_head.py', 'if bboxes.shape[0] == 0', _NO_MASKS),
    AllowedLine(
        f'{_DENSE_HEADS}/yolact_head.py',
        '0 < nms_pre < scores.shape[0]',
        'YOLACTPreselect leaves at most nms_pre anchors, at any image size',
    ),
    AllowedLine(f'{_DENSE_HEADS}/solo*_head.py', 'if len(cls_scores) == 0', _NO_MASKS),
    AllowedLine(f'{_DENSE_HEADS}/solo*_head.py', 'if keep.sum() == 0', _NO_MASKS, truth=False),
    AllowedLine(f'{_DENSE_HEADS}/solo*_head.py', 'if len(keep_inds) == 0', _NO_MASKS),
    AllowedLine(
        f'{_DENSE_HEADS}/solo*_head.py', 'results.scores.new_zeros(len(scores), 4)', 'SOLOBoxes makes them again'
    ),
    AllowedLine('mmdet/models/layers/brick_wrappers.py', 'input.numel() == 0', 'only in torch before 1.9'),
    AllowedLine(f'{_ROI_HEADS}/*roi_head.py', '_feat.shape[-2:] != ', _POOLED),
    AllowedLine(f'{_ROI_HEADS}/mask_heads/feature_relay_head.py', 'if N > 0', 'no detections: none is relayed'),
    AllowedLine(
        f'{_ROI_HEADS}/*roi_head.py',
        'len(_bbox) for _bbox in bboxes',
        'of one image, the split by these numbers is the whole',
    ),
    AllowedLine(
        f'{_ROI_HEADS}/*head.py', 'range(labels.size(0)), labels', 'MaskScoringForward, MaskIoUPredict: all rows'
    ),
    AllowedLine(
        f'{_ROI_HEADS}/roi_extractors/generic_roi_extractor.py', 'if roi_feats.shape[0] == 0', 'none are pooled'
    ),
    AllowedLine('mmcv/ops/point_sample.py', 'affine_trans = torch.tensor(', 'a constant'),
    AllowedLine('mmcv/ops/point_sample.py', 'if inds.any()', _ONE_IMAGE, truth=True),
    AllowedLine(f'{_ROI_HEADS}/point_rend_roi_head.py', 'if inds.any()', _ONE_IMAGE, truth=True),
    AllowedLine('mmcv/ops/point_sample.py', 'if rois.size(1) == 5', _CHANNELS),
    AllowedLine(f'{_ROI_HEADS}/point_rend_roi_head.py', 'self.test_cfg.subdivision_num_points >=', _POOLED),
    AllowedLine('mmdet/models/utils/point_sample.py', 'if mask_preds.shape[1] == 1', _CHANNELS),
    AllowedLine(f'{_ROI_HEADS}/mask_heads/mask_point_head.py', 'mask_size = int(', _POOLED),
    AllowedLine('mmcv/ops/carafe.py', 'mask_channel = int(', _CHANNELS),
    AllowedLine(f'{_ROI_HEADS}/sparse_roi_head.py', 'proposal.shape[0] == 0', _PROPOSALS),
    AllowedLine(f'{_ROI_HEADS}/sparse_roi_head.py', 'len(rois)', _PROPOSALS),
    AllowedLine(f'{_ROI_HEADS}/bbox_heads/bbox_head.py', 'if cls_scores.numel() == 0', _PROPOSALS),
    AllowedLine(f'{_ROI_HEADS}/bbox_heads/bbox_head.py', 'len(pos_is_gts_)', _PROPOSALS),
    AllowedLine(f'{_ROI_HEADS}/bbox_heads/bbox_head.py', 'cls_scores.shape[-1] == self.num_classes', _CHANNELS),
    AllowedLine('bbox_overlaps.py', 'if rows * cols == 0', 'no boxes: as many overlaps come out'),
    AllowedLine('mmseg/models/segmentors/base.py', 'if C > 1', _CHANNELS),
    AllowedLine('mmcv/ops/cc_attention.py', "torch.tensor(float('-inf'))", 'minus infinity'),
    AllowedLine('mmseg/models/decode_heads/knet_head.py', 'if mask_h != H or mask_w != W', 'the strides of the config'),
    AllowedLine(
        'mmseg/models/decode_heads/dpt_head.py',
        'if x.shape != inputs[1].shape',
        'FeatureFusion gives both one size',
    ),
    AllowedLine('mmseg/models/decode_heads/dnl_head.py', 'torch.tensor(', 'the number of channels and the temperature'),
    AllowedLine('mmseg/models/segmentors/base.py', 'for i in range(batch_size)', 'the batch size is fixed'),
    AllowedLine('encoder_decoder.py', "_['ori_shape'] == ori_shape", 'only logs that the images of a batch differ'),
    AllowedLine(
        f'{_DENSE_HEADS}/rpn_head.py',
        '0 < nms_pre < scores.shape[0]',
        'RPNPreselect leaves at most nms_pre anchors, at any image size',
    ),
    AllowedLine(
        f'{_ROI_HEADS}/*roi_head.py', 'if rois.shape[0] == 0', 'no proposals: RoIAlign and the heads then run on none'
    ),
    AllowedLine(
        f'{_ROI_HEADS}/*roi_head.py', 'if mask_rois.shape[0] == 0', 'no detections: the mask head then runs on none'
    ),
    AllowedLine(
        f'{_ROI_HEADS}/*roi_head.py',
        'len(p) for p in proposals',
        'of one image, the split by these numbers is the whole',
    ),
    AllowedLine(
        f'{_ROI_HEADS}/*roi_head.py',
        'len(res) for res in results_list',
        'of one image, the split by these numbers is the whole',
    ),
    AllowedLine(f'{_ROI_HEADS}/*roi_head.py', 'rois[i].shape[0] > 0', 'no proposals: the refined ones are as many'),
    AllowedLine('', "for s in img_meta['scale_factor']", 'a scale factor is two numbers, for every image'),
    AllowedLine(
        f'{_ROI_HEADS}/bbox_heads/*bbox_head.py',
        'if roi.shape[0] == 0',
        'BBoxHeadPredict hands it a row more than there are RoIs',
    ),
    AllowedLine(
        f'{_ROI_HEADS}/mask_heads/fcn_mask_head.py',
        'if bboxes.shape[0] == 0',
        'no detections: as many masks are pasted',
    ),
    AllowedLine(f'{_ROI_HEADS}/bbox_heads/bbox_head.py', 'bboxes.size(-1) == 4', _CHANNELS),
    AllowedLine('mmcv/cnn/bricks/generalized_attention.py', 'torch.Tensor([wave_length])', 'a number of the config'),
    AllowedLine('mmdet/structures/bbox/transforms.py', 'if bboxes.size(1) == 5', _CHANNELS),
    AllowedLine(f'{_DENSE_HEADS}/yolo_head.py', 'in zip(flatten_bboxes', 'the batch size is fixed'),
    AllowedLine('mmdet/models/detectors/*.py', 'H, W = HW', 'a size is two numbers, for every image'),
    AllowedLine(f'{_ROI_HEADS}/sparse_roi_head.py', 'bboxes_per_img.size(0) > 0', _PROPOSALS),
    AllowedLine(f'{_DENSE_HEADS}/tood_head.py', 'for _ in range(b)', _BATCH),
    AllowedLine('mmdet/models/detectors/ddq_detr.py', 'num_imgs = len(scores)', _BATCH),
    AllowedLine(
        'mmdet/models/detectors/ddq_detr.py', 'batched_nms(', 'DDQPreDecoder puts others in place of these ones'
    ),
    AllowedLine('mmdet/models/layers/transformer/ddq_detr_layers.py', 'len(query) * ', _BATCH),
    AllowedLine('mmdet/models/detectors/*.py', 'len(query) == self.num_queries', _BATCH),
    AllowedLine('mmdet/models/detectors/*.py', 'references=list(references)', 'the number of decoder layers is fixed'),
    AllowedLine('mmcv/ops/deform_conv.py', 'input_pad', _NEUTRAL),
    AllowedLine('mmcv/ops/deform_conv.py', 'self.kernel_size[', _NEUTRAL),
    AllowedLine('mmdet/models/layers/transformer/*.py', 'in enumerate(spatial_shapes)', _LEVELS),
    AllowedLine('mmdet/models/detectors/*.py', 'in enumerate(spatial_shapes)', _LEVELS),
    AllowedLine('mmdet/models/detectors/*.py', '*inter_references]', 'the number of decoder layers is fixed'),
    AllowedLine('', 'reference_points.shape[-1] == ', _CHANNELS),
    AllowedLine('', 'reference.shape[-1] == ', _CHANNELS),
    AllowedLine('mmdet/models/layers/transformer/utils.py', 'coord_tensor.size(-1) == ', _CHANNELS),
    AllowedLine('mmdet/models/layers/transformer/utils.py', 'scaling = float(head_dims)', _CHANNELS),
    AllowedLine(f'{_DENSE_HEADS}/*.py', 'if mask.sum() == 0', _LOCATION, truth=False),
    AllowedLine(f'{_DENSE_HEADS}/paa_head.py', 'len(det_bboxes) > 0', 'none: voting on none is none'),
    AllowedLine('mmdet/structures/bbox/bbox_overlaps.py', 'if rows * cols == 0', 'of no boxes: as many overlaps'),
    AllowedLine(
        f'{_ROI_HEADS}/grid_roi_head.py', 'if grid_rois.shape[0] != 0', 'none: the grid head then runs on none'
    ),
    AllowedLine(f'{_ROI_HEADS}/mask_heads/grid_head.py', 'if len(results) != 0', 'as in grid_roi_head.py'),
    AllowedLine(f'{_ROI_HEADS}/trident_roi_head.py', 'if bboxes.numel() == 0', 'none: NMS then runs on none'),
    AllowedLine(
        f'{_ROI_HEADS}/roi_extractors/generic_roi_extractor.py',
        'if roi_feats.shape[0] == 0',
        'no proposals: RoIAlign then runs on none',
    ),
    AllowedLine(f'{_DENSE_HEADS}/c*er*_head.py', 'if labels.numel() > 0', 'CornerNMS hands it a row more'),
    AllowedLine(
        f'{_ROI_HEADS}/bbox_heads/*_head.py', 'if rescale and bboxes.size(0) > 0', 'scaling no boxes does nothing'
    ),
)


def allowed_lines(extra: Iterable[Mapping[str, Any]] = ()) -> list[AllowedLine]:
    """The built-in lines and those of the deploy config's ``audit.allow``.

    Args:
        extra: dicts with ``file``, ``line`` and ``reason``, and ``truth`` where a tensor is asked.

    Raises:
        ConfigError: an entry that is anything else.
    """
    lines = list(ALLOWED)
    for entry in extra if isinstance(extra, (list, tuple)) else [extra]:
        if (
            not isinstance(entry, Mapping)
            or {*entry} - {'truth'} != {'file', 'line', 'reason'}
            or not all(isinstance(entry[key], str) for key in ('file', 'line', 'reason'))
            or not isinstance(entry.get('truth'), (bool, type(None)))
        ):
            raise ConfigError(
                f'audit.allow has {entry!r}; each entry is dict(file=end of the path, line=part of the line,'
                ' reason=why), with truth=True or False where torch.export is to take a branch'
            )
        lines.append(AllowedLine(**entry))
    return lines


def known_truth(filename: str, lineno: int, allowed: Iterable[AllowedLine]) -> bool | None:
    """What to take a tensor for that a line asks, see :attr:`AllowedLine.truth`; None where nobody says."""
    text = _text(filename, _statement_at(filename, lineno), lineno)
    return next((entry.truth for entry in allowed if entry.truth is not None and entry.allows(filename, text)), None)


def unknown_places(warnings: Iterable[TracedWarning], allowed: Iterable[AllowedLine]) -> list[tuple[str, int]]:
    """File and line of the tracer's warnings at lines that nobody vouched for, each once."""
    allowed = list(allowed)
    found = []
    for filename, lineno in dict.fromkeys((warning.filename, warning.lineno) for warning in warnings):
        statement = _statement_at(filename, lineno)
        text = _text(filename, statement, lineno)
        if not _is_assertion(statement) and not any(entry.allows(filename, text) for entry in allowed):
            found.append((filename, lineno))
    return found


def unknown_warnings(warnings: Iterable[TracedWarning], allowed: Iterable[AllowedLine]) -> list[str]:
    """:func:`unknown_places` in words."""
    return [describe_place(*place) for place in unknown_places(warnings, allowed)]


def describe_place(filename: str, lineno: int) -> str:
    """File, line and what stands there."""
    return f'{_short(filename)}:{lineno}: {linecache.getline(filename, lineno).strip()}'


def _short(filename: str) -> str:
    """A library's file by its place in the library: where that is installed says nothing, and goes into the file."""
    return filename.replace('\\', '/').rpartition('site-packages/')[2]


def _is_assertion(statement: ast.stmt | None) -> bool:
    """``assert``, or an ``if`` that raises: it held while tracing, what follows is the same, and no value is frozen."""
    return isinstance(statement, ast.Assert) or (
        isinstance(statement, ast.If) and isinstance(statement.body[-1], ast.Raise)
    )


def _statement_at(filename: str, lineno: int) -> ast.stmt | None:
    """The innermost statement that the line is a part of; None where the source cannot be read."""
    around = [node for node in _statements(filename) if node.lineno <= lineno <= node.end_lineno]
    return min(around, key=lambda node: node.end_lineno - node.lineno, default=None)


@functools.lru_cache(maxsize=64)
def _statements(filename: str) -> list[ast.stmt]:
    try:
        tree = ast.parse(''.join(linecache.getlines(filename)))
    except SyntaxError:
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]


def _text(filename: str, statement: ast.stmt | None, lineno: int) -> str:
    """The source of a statement that may have several lines; of one with a body, up to that."""
    if statement is None:
        return linecache.getline(filename, lineno).strip()
    body = getattr(statement, 'body', None)
    last = max(body[0].lineno - 1, statement.lineno) if body else statement.end_lineno
    return ' '.join(linecache.getline(filename, number).strip() for number in range(statement.lineno, last + 1))
