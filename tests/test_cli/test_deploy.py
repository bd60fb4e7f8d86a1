"""The command line on good input, interrupted, and from Python."""

from __future__ import annotations

import json
import re

import cv2
import numpy as np
import onnx
import pytest
import torch

from mmdeploy_lite import cli
from mmdeploy_lite.export import winograd

from .conftest import PREVIOUS, files, run


class TestDeploy:
    @pytest.mark.parametrize('kind', ['segmentor', 'detector'])
    def test_equal(self, inputs, tmp_path, capsys, kind):
        folder = tmp_path / 'new' / 'work'
        code = run(folder, *getattr(inputs, kind), inputs.image, inputs.other, inputs.nothing)
        captured = capsys.readouterr()
        assert code == 0, captured.out + captured.err
        assert captured.err == ''  # a healthy run prints no warning
        assert sorted(files(folder)) == [
            'compare_empty.png',
            'compare_other.png',
            'compare_scene.png',
            'model.onnx',
            'report.json',
        ]
        report = json.loads((folder / 'report.json').read_text())
        assert report['equal'] is True and report['warnings'] == []
        model = onnx.load(folder / 'model.onnx')
        assert {entry.domain for entry in model.opset_import} == {''}
        dims = [dim.dim_param or dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
        assert dims == [1, 3, 'height', 'width']
        for word in (
            'equal',
            str(folder / 'model.onnx'),
            'MB',
            'image 1x3xheightxwidth float32',
            'next: mmdeploy-lite',
        ):
            assert word in captured.out.replace('\n', ''), word
        for image in ('scene', 'other', 'empty'):
            assert cv2.imread(str(folder / f'compare_{image}.png')) is not None

    def test_without_an_algorithm_that_rounds_too_much(self, inputs, work_dir, capsys, monkeypatch):
        matrices = winograd.transforms()._replace(result=np.zeros((4, 6)))
        monkeypatch.setattr(winograd, 'transforms', lambda: matrices)
        monkeypatch.setattr(winograd, 'NODES', -1e15)  # whether it saves work or not
        assert run(work_dir, *inputs.segmentor, inputs.image) == 0
        (warning,) = json.loads((work_dir / 'report.json').read_text())['warnings']
        wanted = "convolutions are as the model has them: by Winograd's algorithm, scene.png is unequal: "
        assert warning.startswith(wanted) and 'pixels differ' in warning
        assert 'Winograd' in capsys.readouterr().out
        assert set(files(work_dir)) == {'model.onnx', 'report.json', 'compare_scene.png'}

    def test_fixed_shape_and_options(self, inputs, work_dir, capsys):
        (work_dir / 'model.unequal.onnx').write_bytes(PREVIOUS)
        options = ['deploy.rescale=False', 'deploy.input.dtype=uint8', 'deploy.rewriters.slide_inference=None']
        assert run(work_dir, *inputs.segmentor, inputs.image, '--shape', 64, 96, '--cfg-options', *options) == 0
        model = onnx.load(work_dir / 'model.onnx')
        (image,) = model.graph.input
        assert [dim.dim_value for dim in image.type.tensor_type.shape.dim] == [1, 3, 64, 96]
        assert image.type.tensor_type.elem_type == onnx.TensorProto.UINT8
        out = capsys.readouterr().out
        assert 'image 1x3x64x96 uint8' in out and 'ori_shape' not in out
        assert 'model.unequal.onnx' not in files(work_dir)

    @pytest.mark.usefixtures('torch_export')
    def test_second_exporter_and_audit(self, inputs, work_dir, capsys):
        options = ['deploy.exporter.type=TorchExportExporter']
        assert run(work_dir, *inputs.segmentor, inputs.image, '--audit', '--cfg-options', *options) == 0
        out = capsys.readouterr().out.replace('\n', '')
        assert "branches on a value in the model's code: none" in out
        assert 'opset 18' in out and 'image 1x3xheightxwidth float32' in out
        # a size of which torch.export made a limit would show: smaller, larger, and turned
        compared = re.findall(r'scene.png \(at (\d+x\d+)\)', (work_dir / 'report.json').read_text())
        assert set(compared) == {'64x96', '64x64', '96x96'}
        options = ['deploy.exporter.type=TorchExportExporter', 'deploy.exporter.opset=17']
        assert run(work_dir, *inputs.segmentor, inputs.image, '--cfg-options', *options) == 2
        assert 'opset 18 or newer, not 17' in capsys.readouterr().err

    def test_not_equal_is_exit_1_and_another_name(self, inputs, work_dir, capsys, monkeypatch):
        from mmdeploy_lite.rewriters.mmseg_segmentors import Resize

        plain = Resize.__call__

        def wrong(self, origin, input, *args, **kwargs):
            return plain(self, origin, input.roll(1, -1), *args, **kwargs)

        monkeypatch.setattr(Resize, '__call__', wrong)
        assert run(work_dir, *inputs.segmentor, inputs.image) == 1
        assert (work_dir / 'model.onnx').read_bytes() == PREVIOUS
        assert set(files(work_dir)) == {'model.onnx', 'model.unequal.onnx', 'report.json', 'compare_scene.png'}
        assert json.loads((work_dir / 'report.json').read_text())['equal'] is False
        assert 'model.unequal.onnx' in capsys.readouterr().out.replace('\n', '')

    def test_users_rewriter_that_never_fired_is_a_warning(self, inputs, work_dir, tmp_path, monkeypatch, capsys):
        (tmp_path / 'my_rewriters.py').write_text(
            'from mmdeploy_lite.registry import REWRITERS\n'
            'from mmdeploy_lite.rewriting import FunctionRewriter\n'
            '@REWRITERS.register_module(force=True)\n'
            'class Mine(FunctionRewriter):\n'
            "    target = 'mmseg.models.decode_heads.psp_head.PSPHead.forward'\n"
            '    def __init__(self, needed): pass\n'
        )
        monkeypatch.syspath_prepend(tmp_path)
        deploy_cfg = tmp_path / 'deploy_cfg.py'
        deploy_cfg.write_text(
            "_base_ = 'mmdeploy_lite::mmseg/segmentation_onnxruntime.py'\n"
            "custom_imports = dict(imports=['my_rewriters'], allow_failed_imports=False)\n"
            "deploy = dict(rewriters=dict(mine=dict(type='Mine', needed=1)))\n"
        )
        assert run(work_dir, *inputs.segmentor, inputs.image, '--deploy-cfg', deploy_cfg) == 0
        warning = "your rewriter 'mine' never fired: nothing called mmseg.models.decode_heads.psp_head.PSPHead.forward"
        assert json.loads((work_dir / 'report.json').read_text())['warnings'] == [warning]
        assert warning in ' '.join(capsys.readouterr().out.split())

    def test_a_wrong_way_that_the_images_do_not_take_is_found(self, inputs, work_dir, monkeypatch):
        from mmdeploy_lite.rewriters import mmseg_segmentors

        def wrong(enough, first, second):
            return choose(enough, first, [1 - value for value in second])

        choose = mmseg_segmentors.choose
        monkeypatch.setattr(mmseg_segmentors, 'choose', wrong)
        height, width = cv2.imread(str(inputs.image)).shape[:2]
        assert run(work_dir, *inputs.segmentor, inputs.image, '--shape', height, width) == 1
        found = json.loads((work_dir / 'report.json').read_text())['checks'][0]
        assert found['image'] == inputs.image.name
        assert found['reasons'][0].startswith('its longer way, which other images take: ')


class TestInterrupted:
    @pytest.mark.parametrize(
        'stage',
        [
            'mmdeploy_lite.prepare.build_model',
            'mmdeploy_lite.export.build.optimize',
            'mmdeploy_lite.export.attempt.save_model',
            'mmdeploy_lite.check.visualize.save_comparison',
            'mmdeploy_lite.apis.put_in_place',
            'mmdeploy_lite.workdir.put_in_place',
        ],
    )
    def test_previous_file_stays(self, inputs, work_dir, capsys, monkeypatch, stage):
        def interrupt(*args, **kwargs):
            if stage.endswith('save_model'):
                args[1].write_bytes(b'half of it')
            raise KeyboardInterrupt

        monkeypatch.setattr(stage, interrupt)
        assert run(work_dir, *inputs.segmentor, inputs.image) == 130
        captured = capsys.readouterr()
        assert captured.err == 'interrupted; a model.onnx of an earlier run is as it was\n'
        assert files(work_dir) == {'model.onnx': PREVIOUS}

    def test_interrupt_while_tracing_leaves_nothing_replaced(self, inputs, work_dir, monkeypatch):
        from mmseg.models import utils
        from mmseg.models.decode_heads import FCNHead
        from mmseg.models.utils import resize

        forward = FCNHead.forward

        def interrupt(self, inputs):
            if torch.jit.is_tracing():
                assert utils.resize is not resize
                raise KeyboardInterrupt
            return forward(self, inputs)

        monkeypatch.setattr(FCNHead, 'forward', interrupt)
        assert run(work_dir, *inputs.segmentor, inputs.image) == 130
        assert utils.resize is resize and not torch.jit.is_tracing()
        assert files(work_dir) == {'model.onnx': PREVIOUS}


def test_version_and_commands(capsys):
    for words in (['--version'], ['--help'], ['deploy', '--help']):
        with pytest.raises(SystemExit) as caught:
            cli.main(words)
        assert caught.value.code == 0
    out = capsys.readouterr().out
    assert 'mmdeploy_lite ' in out and 'CHECKPOINT' in out
    with pytest.raises(SystemExit) as caught:
        cli.main([])
    assert caught.value.code == 2


def test_python_call_is_the_same(inputs, tmp_path, monkeypatch):
    """To the byte; and the work dir that nobody names is that of the config."""
    from mmdeploy_lite.apis import deploy

    result = deploy(*inputs.segmentor, inputs.image, work_dir=tmp_path / 'python')
    assert result.equal and result.path == tmp_path / 'python' / 'model.onnx'
    monkeypatch.chdir(tmp_path)
    assert run(None, *inputs.segmentor, inputs.image) == 0
    assert (tmp_path / 'work_dirs' / 'segmentor' / 'model.onnx').read_bytes() == result.path.read_bytes()


def test_python_call_without_an_image(inputs, tmp_path):
    from mmdeploy_lite.apis import deploy
    from mmdeploy_lite.errors import ConfigError

    with pytest.raises(ConfigError, match='no image given'):
        deploy(*inputs.segmentor, [], work_dir=tmp_path)
