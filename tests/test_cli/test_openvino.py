"""Deploying for OpenVINO, and running the file with it."""

from __future__ import annotations

import json
import sys

import pytest

from mmdeploy_lite import cli

from .conftest import files, run


@pytest.mark.parametrize('kind', ['segmentor', 'detector'])
def test_deploy_and_infer(inputs, tmp_path, capsys, kind):
    pytest.importorskip('openvino', reason='OpenVINO is not installed')
    folder = tmp_path / 'work'
    config = dict(segmentor='mmseg/segmentation_openvino.py', detector='mmdet/detection_openvino.py')[kind]
    options = ['--deploy-cfg', f'mmdeploy_lite::{config}', '--cfg-options', 'deploy.backend.threads=1']
    assert run(folder, *getattr(inputs, kind), inputs.image, inputs.other, *options) == 0
    report = json.loads((folder / 'report.json').read_text())
    assert report['equal'] and report['backend'] == 'OpenVINOBackend' and 'openvino' in report['versions']
    assert [check['output'] for check in report['checks']].count('runtime') == 2
    (line,) = [line for line in capsys.readouterr().out.splitlines() if 'mmdeploy-lite infer' in line]
    words = line.split('mmdeploy-lite ')[1].split()
    assert words[-2:] == ['--backend', 'openvino']
    answers = []
    for name, more in (('openvino', ['--backend', 'openvino']), ('onnxruntime', [])):
        out = folder / name
        assert cli.main([*words[:3], '--out', str(out), '--threads', '1', *more]) == 0
        answers.append(json.loads((out / 'results.json').read_text())['results'])
    assert len(answers[0]) == len(answers[1]) > 0
    if kind == 'segmentor':
        assert answers[0] == answers[1]


def test_without_openvino_nothing_is_exported(inputs, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, 'openvino', None)
    options = ['--cfg-options', 'deploy.backend.type=OpenVINOBackend']
    assert "pip install openvino, or 'mmdeploy_lite[openvino]'" in refused(*inputs.segmentor, inputs.image, *options)


def test_no_such_backend(inputs, tmp_path, capsys):
    with pytest.raises(SystemExit):
        cli.main(['infer', 'model.onnx', str(inputs.image), '--backend', 'none'])
    assert "invalid choice: 'none'" in capsys.readouterr().err
    assert files(tmp_path) == {}
