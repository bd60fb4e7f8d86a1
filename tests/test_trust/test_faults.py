"""Faults in finished files and in rewriters: the check of `deploy` catches them, or the report says why it cannot."""

from __future__ import annotations

import json

import pytest

from mmdeploy_lite import cli
from mmdeploy_lite.testing.trust.edits import GRAPH_FAULTS, Graph, NotApplicableError, apply
from mmdeploy_lite.testing.trust.faults import NOT_EXERCISED, faults_of
from mmdeploy_lite.testing.trust.fixtures import POOR
from mmdeploy_lite.testing.trust.rewriter_faults import REWRITER_FAULTS

from .conftest import DEMO

SOME = [
    'boxes shifted by a tenth of a pixel',
    'sx and sy swapped',
    'IoU threshold 0.1 higher',
    'padding value',
    'top-k halved',
]


def test_there_are_enough():
    assert len(GRAPH_FAULTS) >= 25 and len(REWRITER_FAULTS) >= 5
    assert {*NOT_EXERCISED} <= {*GRAPH_FAULTS, *REWRITER_FAULTS}


def test_a_good_file_passes(bench):
    assert bench.good.word == 'equal'
    assert bench.check(bench.model).word == 'equal'


@pytest.mark.parametrize('name', SOME)
def test_a_fault_is_caught(bench, name):
    verdict = bench.check(apply(GRAPH_FAULTS[name], bench.model))
    assert verdict.word == 'unequal' and verdict.why


def test_both_ways_of_a_file_are_checked(bench, monkeypatch):
    class Wrong:
        def __init__(self, model, backend):
            self.session = backend.load(bench.path)

        def run(self, feeds):
            return {name: value + 1 for name, value in self.session.run(feeds).items()}

        def not_exercised(self):
            return []

    monkeypatch.setattr('mmdeploy_lite.testing.trust.bench.second_way', Wrong)
    verdict = bench.check(bench.model)
    assert verdict.word == 'unequal' and 'its longer way, which other images take' in verdict.why


def test_what_the_images_cannot_show_is_said(bench):
    assert not bench.check(apply(GRAPH_FAULTS['coarsest level skipped'], bench.model)).caught
    assert 'no object comes from level 4, 5 of 5, the finest being 1' in bench.not_exercised


def test_a_fault_in_a_rewriter_is_caught(bench):
    rewriters, fixtures = REWRITER_FAULTS['anchors moved by half a cell']
    verdict, graph = bench.rebuild(rewriters)
    assert bench.fixture.name in fixtures and verdict.caught and graph != bench.good_graph


def test_an_edit_that_changes_nothing_is_no_fault(bench):
    def nothing(graph: Graph) -> None:
        graph.nodes('Conv')

    with pytest.raises(AssertionError, match='nothing changed nothing'):
        apply(nothing, bench.model)
    with pytest.raises(NotApplicableError):
        apply(GRAPH_FAULTS['masks from the wrong class'], bench.model)


@pytest.mark.slow
def test_one_image_that_shows_little(tmp_path):
    found = faults_of(POOR[1], tmp_path, DEMO)
    hidden = [fault for fault in found['faults'] if not fault['caught']]
    assert {fault['fault'] for fault in hidden} >= {'sx and sy swapped', 'scale factor ignored'}
    assert [fault['fault'] for fault in hidden if not fault['not_exercised']] == []


def test_the_command_line_says_so(bench, tmp_path, monkeypatch):
    """The whole of `deploy`, with a fault between the export and the check."""
    from mmdeploy_lite.export import attempt

    save = attempt.save_model

    def broken(model, path, *args):
        save(apply(GRAPH_FAULTS['labels from one'], model), path, *args)

    monkeypatch.setattr(attempt, 'save_model', broken)
    made = bench.fixture
    words = ['deploy', made.config, made.checkpoint, made.images[0], '--work-dir', tmp_path]
    assert cli.main(list(map(str, words))) == 1
    assert sorted(path.name for path in tmp_path.glob('*.onnx')) == ['model.unequal.onnx']
    assert json.loads((tmp_path / 'report.json').read_text())['verdict'] == 'not equal'
