"""Bad files, bad images, long runs and leaks: a few of each, and that the means of finding them find something."""

from __future__ import annotations

import pytest

from mmdeploy_lite.runtime import session
from mmdeploy_lite.testing.trust import leaks, runs
from mmdeploy_lite.testing.trust.inputs import KINDS, fuzz
from mmdeploy_lite.testing.trust.page import page, write, written
from mmdeploy_lite.testing.trust.parts import Job, jobs, rows

from .conftest import DEMO


@pytest.mark.parametrize('what', KINDS)
def test_bad_inputs_are_answered_clearly(tmp_path, what):
    found = fuzz('detector', what, tmp_path, 50)
    assert found['unclear'] == [] and sum(found['answers'].values()) == 50
    assert found['answers']['our error'] > 10


def test_without_the_seal_the_fuzzing_finds_something(tmp_path, monkeypatch):
    from mmdeploy_lite.runtime.seal import check_seal

    def unchecked(path):
        try:
            return check_seal(path)
        except Exception:
            return known

    monkeypatch.setattr(session, 'check_seal', unchecked)
    known = {'mmdeploy_lite': ''}
    seen = fuzz('detector', 'files', tmp_path / 'blind', 1)
    known = check_seal(tmp_path / 'blind' / 'out' / 'model.onnx')
    seen = fuzz('detector', 'files', tmp_path / 'blind', 100)
    assert seen['unclear'] and set(seen['answers']) - {'our error', 'right answer'}


def test_memory_that_grows():
    assert runs.slope([100 + 0.001 * index for index in range(1000)]) == pytest.approx(1, rel=1e-3)
    assert runs.slope([100.0] * 500 + [108.0] * 10 + [100.0] * 490) == 0
    assert runs.slope([100.0] * 1000) == 0


def test_threads_share_a_model(tmp_path):
    assert runs.threads('detector', tmp_path, images=24) == dict(kind='detector', threads=8, images=24, differ=0)


def test_a_leak_is_found():
    import mmdet.structures.bbox.transforms as transforms
    from mmdet.models.dense_heads import RetinaHead

    before = leaks.snapshot()
    assert len(before) > 10_000 and leaks.changed(before) == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transforms, 'distance2bbox', lambda *args: None)
        patch.setattr(RetinaHead, 'init_weights', lambda self: None, raising=False)
        assert 'mmdet.structures.bbox.transforms.distance2bbox' in leaks.changed(before)
    assert leaks.changed(before) == []


def test_an_interrupted_deploy_leaves_nothing_replaced(tmp_path):
    found = leaks.restored(tmp_path, DEMO, ['SegFormer'])
    assert found['leaks'] == [] and found['deploys'] == len(leaks.ENDINGS)


def test_the_table():
    found = [
        dict(part='work', job='kills', arguments=[4], kills=4, survived=3, left=4, cleaned=True),
        dict(part='leaks', job='restored', arguments=[], error='Segmentation fault (exit code -11)'),
    ]
    table = rows(found)
    assert [well for *_, well in table] == [False, True, False]
    assert '3 times the earlier file was whole **(not as it should)**' in page(
        [{**entry, 'seconds': 1.0} for entry in found]
    )
    assert {job.part for job in jobs()} == {job.part for job in jobs(quick=True)}
    assert Job('work', 'kills', (50,)) in jobs()


def test_a_run_goes_on_where_it_was_cut_off(tmp_path):
    done = dict(part='work', job='refusals', arguments=[], cases={'no room': True}, seconds=1.0)
    failed = dict(part='work', job='odd_paths', arguments=[], error='crash', seconds=1.0)
    write([done], tmp_path)
    write([failed], tmp_path)
    assert written(tmp_path) == [Job('work', 'refusals')]
    text = (tmp_path / 'trust.md').read_text(encoding='utf-8')
    assert '1 as they should |' in text and 'failed: crash **(not as it should)**' in text
