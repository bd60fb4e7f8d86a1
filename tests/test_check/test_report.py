from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from mmdeploy_lite.check import Comparison, Tolerance
from mmdeploy_lite.check.comparison import Unmatched
from mmdeploy_lite.check.report import Check, FileFacts, Report
from mmdeploy_lite.errors import WorkDirError


def equal(**changes: object) -> Comparison:
    fields = dict(ref_count=27, out_count=27, matched=27, worst_score_diff=4.1e-5, worst_box_diff=4e-4)
    return Comparison('detections', **{**fields, **changes})


UNEQUAL = Comparison('seg_map', 'unequal', 12_000_000, 12_000_000, 11_999_997, clear_pixels=3)
UNEQUAL.reasons.append('3 pixels differ [where] it is sure')
UNDECIDABLE = equal(
    verdict='undecidable',
    excused=[Unmatched('reference', 0, 1, 0.5, (0, 0, 1, 1), 'tie')] * 2,
    reasons=['2 detections of 27 are excused'],
)


def report(*comparisons: Comparison, **fields: object) -> Report:
    names = ['astronaut.png', 'Straße [1] mit Leerzeichen und sehr langem Namen.png', 'chelsea.png (flipped)']
    checks = [
        Check(names[i % 3], (3000, 4000), 'seg_map' if item.kind == 'seg_map' else 'dets', item)
        for i, item in enumerate(comparisons)
    ]
    inputs = [dict(name='image', dtype='float32', shape=(1, 3, 'height', np.int64(4)))]
    return Report(FileFacts('work_dirs/x/model.onnx', 1234, inputs, [], 17, 321), checks, **fields)


def printed(item: Report, width: int, encoding: str = 'utf-8', terminal: bool = False) -> str:
    stream = io.BytesIO()
    file = io.TextIOWrapper(stream, encoding=encoding, errors='strict')
    item.print(Console(file=file, width=width, force_terminal=terminal, color_system='standard' if terminal else None))
    file.flush()
    return stream.getvalue().decode(encoding)


@pytest.mark.parametrize(
    ('comparisons', 'verdict'),
    [
        ((equal(), equal()), 'equal'),
        ((equal(), UNDECIDABLE), 'undecidable'),
        ((UNDECIDABLE, UNEQUAL, equal()), 'not equal'),
        ((), 'undecidable'),
    ],
)
def test_the_worst_check_decides(comparisons: tuple, verdict: str) -> None:
    item = report(*comparisons)
    assert item.verdict == verdict and item.equal == (verdict == 'equal')
    assert item.summary().startswith(f'{verdict}: ')


def test_summary_says_what_was_compared() -> None:
    line = report(equal(), equal(has_masks=True, worst_box_diff=0.012, excused=UNDECIDABLE.excused)).summary()
    assert line == (
        'equal: 2 images, 54 detections, scores within 4.1e-05, boxes within 0.0120 px, no clear pixel differs, '
        '2 excused'
    )
    tensors = Comparison('tensors', worst_tensor_diff=3.2e-6)
    assert report(tensors).summary() == 'equal: 1 image, tensors within 3.2e-06 of their range'
    assert report(equal(), UNEQUAL).summary() == (
        'not equal: 1 of 2 comparisons, the first is seg_map of Straße [1] mit Leerzeichen und sehr langem Namen.png: '
        '3 pixels differ [where] it is sure'
    )
    assert '1 of 1 comparison, ' in report(UNEQUAL).summary()


@pytest.mark.parametrize('width', [80, 120, 200])
@pytest.mark.parametrize('terminal', [False, True])
def test_table_fits_and_loses_nothing(width: int, terminal: bool) -> None:
    masks = equal(has_masks=True, clear_pixels=7, excused_pixels=13)
    tensors = Comparison('tensors', ref_count=1_234_567, out_count=1_234_567, worst_tensor_diff=3.2e-6)
    item = report(equal(), UNDECIDABLE, UNEQUAL, masks, tensors, not_exercised=['NMS suppressed nothing'])
    text = printed(item, width, terminal=terminal)
    assert ('\x1b[' in text) == terminal
    if not terminal:
        lines = text.splitlines()
        assert max(map(len, lines)) <= width
        for cell in ('12.0M', '1234567', '4.1e-05', '0.0004 px', '7 pix', '13 pix', '3.2e-06', '4000x3000'):
            assert cell in text, cell
        for word in ('undecidable', 'not equal', 'equal'):
            assert any(line.rstrip().endswith(word) for line in lines), word
        assert '…' not in text
        # Every part of a long name is there, folded; brackets are no markup.
        assert '[1]' in text and 'Leerzeichen' in text


def test_the_verdict_is_the_last_thing() -> None:
    item = report(
        equal(),
        tolerance=Tolerance(score=1e-3),
        not_exercised=['68 of 80 classes never appear', 'NMS suppressed nothing'],
        warnings=['the rewriter [my_head] never fired'],
    )
    lines = printed(item, 120).splitlines()
    assert lines[-4:] == [
        'not exercised: 68 of 80 classes never appear; NMS suppressed nothing',
        'loosened tolerance: score 0.001 (default 0.0001)',
        'warning: the rewriter [my_head] never fired',
        'equal: 1 image, 27 detections, scores within 4.1e-05, boxes within 0.0004 px',
    ]


def test_ascii_terminal() -> None:
    text = printed(Report(FileFacts('m.onnx', 1), [Check('a.png', (3, 4), 'dets', equal())]), 80, encoding='ascii')
    assert 'a.png' in text and text.rstrip().endswith('0.0004 px')


def test_json_is_plain_complete_and_stable(tmp_path: Path) -> None:
    item = report(
        equal(),
        UNEQUAL,
        rewriters=dict(batched_nms={'mmdet.models.x:12': np.int64(2)}),
        unfired=['my_head'],
        stage_times=dict(build=1.23456789, export=np.float32(2)),
        versions=dict(torch='2.13', onnx='1.19'),
        tolerance=Tolerance(score=1e-3),
        not_exercised=['NMS suppressed nothing'],
        warnings=['careful'],
    )
    path = tmp_path / 'Bericht mit Ümlaut.json'
    item.save(path)
    first = path.read_bytes()
    item.save(path)
    assert path.read_bytes() == first and list(tmp_path.iterdir()) == [path]
    loaded = json.loads(first)
    assert list(loaded)[:3] == ['format', 'equal', 'verdict']
    assert loaded['equal'] is False and loaded['verdict'] == 'not equal'
    assert loaded['file']['inputs'] == [dict(name='image', dtype='float32', shape=[1, 3, 'height', 4])]
    assert loaded['checks'][0]['verdict'] == 'equal' and loaded['checks'][1]['verdict'] == 'not equal'
    assert loaded['checks'][0]['counts'] == dict(reference=27, backend=27, matched=27)
    assert loaded['checks'][0]['size'] == [3000, 4000]
    assert loaded['rewriters'] == {'batched_nms': {'mmdet.models.x:12': 2}} and loaded['unfired'] == ['my_head']
    assert loaded['stage_times'] == dict(build=1.2346, export=2.0)
    assert loaded['loosened'] == ['score 0.001 (default 0.0001)'] and loaded['tolerance']['score'] == 1e-3
    assert loaded['not_exercised'] == ['NMS suppressed nothing'] and loaded['warnings'] == ['careful']
    assert 'Straße' in first.decode('utf-8')


def test_report_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(WorkDirError, match='cannot write the report to'):
        report(equal()).save(tmp_path / 'missing' / 'report.json')
