"""One table of all formats: size, accuracy, time, memory."""

from __future__ import annotations

import importlib.util
import json

import onnx
import pytest

from mmdeploy_lite import cli

from .conftest import run

VINO = importlib.util.find_spec('openvino') is not None


@pytest.mark.parametrize('measured', [True, False], ids=['with metrics', 'without a dataset'])
def test_benchmark_with_metrics(inputs, dataset, tmp_path, capsys, measured):
    data = dataset if measured else ['test_dataloader=None']
    made = [*data, 'deploy.precision=fp16', 'deploy.precision.metrics=False', 'deploy.backend.threads=1']
    assert run(tmp_path, *inputs.segmentor, inputs.image, '--cfg-options', *made) == 0
    words = ['benchmark', *inputs.segmentor, inputs.image, '--onnx', tmp_path / 'model.onnx', '--metrics']
    words += ['--threads', 1, '--runs', 2, '--work-dir', tmp_path, '--cfg-options', *data]
    assert cli.main(list(map(str, words))) == 0
    found = json.loads((tmp_path / 'formats.json').read_text())
    rows = {row['name']: row for row in found['rows']}
    names = ['PyTorch', 'ONNX Runtime float32', 'ONNX Runtime fp16']
    assert list(rows) == names + ['OpenVINO float32', 'OpenVINO fp16'] * VINO
    assert all(row['median_ms'] > 0 for row in rows.values()) and found['threads'] == 1 and found['runs'] == 2
    for name in list(rows)[1:]:
        path = tmp_path / ('model.fp16.onnx' if 'fp16' in name else 'model.onnx')
        assert rows[name]['mb'] == pytest.approx(path.stat().st_size / 1e6, abs=1e-3) and rows[name]['peak_mb'] > 1
        assert onnx.load(path).graph.node
    out = capsys.readouterr().out
    if measured:
        assert found['images'] == 3 and found['not_measured'] == ''
        scores = {name: row['accuracy']['mIoU'] for name, row in rows.items()}
        assert scores['PyTorch'] == pytest.approx(100, abs=0.1) and scores['ONNX Runtime float32'] == scores['PyTorch']
        assert 98 < scores['ONNX Runtime fp16'] < 100.01
        assert 'mIoU' in out and '3 images, 1 threads' in ' '.join(out.split())
    else:
        assert found['images'] == 0 and all(row['accuracy'] == {} for row in rows.values())
        assert 'mAP or mIoU was not measured: the config has no test_dataloader' in ' '.join(out.split())


class TestNothingToMeasure:
    def benchmark(self, inputs, capsys, tmp_path, *words):
        line = ['benchmark', *inputs.segmentor, inputs.image, '--work-dir', tmp_path, *words]
        try:
            code = cli.main(list(map(str, line)))
        except SystemExit as stop:  # argparse's
            code = stop.code
        assert code == 2 and not (tmp_path / 'benchmark.json').exists()
        return capsys.readouterr().err.splitlines()[-1]

    @pytest.mark.parametrize('option', ['--threads', '--runs'])
    @pytest.mark.parametrize('value', ['0', '-1', '1.5', 'x'])
    def test_numbers(self, inputs, capsys, tmp_path, option, value):
        said = self.benchmark(inputs, capsys, tmp_path, '--onnx', 'x.onnx', f'{option}={value}')
        assert said.endswith(f"argument {option}: '{value}' is not an integer of 1 or more")

    def test_files(self, inputs, capsys, tmp_path):
        assert 'there is no file' in self.benchmark(inputs, capsys, tmp_path, '--onnx', tmp_path / 'gone.onnx')
        assert 'is not an ONNX file' in self.benchmark(inputs, capsys, tmp_path, '--onnx', inputs.image)
        other = tmp_path / 'other'
        assert run(other, *inputs.detector, inputs.image) == 0
        said = self.benchmark(inputs, capsys, tmp_path, '--onnx', other / 'model.onnx')
        assert 'does not take the image as this config prepares it: the file takes image, scale_factor' in said
        mine = tmp_path / 'mine'
        assert run(mine, *inputs.segmentor, inputs.image) == 0
        file = mine / 'model.onnx'
        said = self.benchmark(inputs, capsys, tmp_path, '--onnx', file, '--peer', tmp_path / 'gone.onnx')
        assert 'there is no file' in said and 'gone.onnx' in said
        said = self.benchmark(inputs, capsys, tmp_path, '--onnx', file, '--peer', inputs.image)
        assert 'scene.png' in said and 'is not an ONNX file' in said
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        assert 'is not what was exported' in self.benchmark(inputs, capsys, tmp_path, '--onnx', file)
