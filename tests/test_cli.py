"""The command line in one process: bad input is one clear line and exit 2, and nothing is half-written."""

from __future__ import annotations

import json
import os
import pickle
import re
from pathlib import Path

import cv2
import onnx
import pytest
import torch
from mmengine.registry import DefaultScope

from mmdeploy_lite import cli
from mmdeploy_lite.loading import load_config
from mmdeploy_lite.testing.images import empty, scene
from mmdeploy_lite.testing.models import find_busy, zoo_model

SCALE = (96, 64)
SEGMENTOR = {
    'model.backbone.base_channels': 4,
    'model.decode_head.in_channels': 32,
    'model.decode_head.channels': 8,
    'model.auxiliary_head.in_channels': 16,
    'model.auxiliary_head.channels': 8,
    'model.pretrained': None,
    'test_dataloader.dataset.pipeline.1.scale': SCALE,
}
DETECTOR = {
    'model.backbone.base_channels': 4,
    'model.neck.in_channels': [4, 8, 16, 32],
    'model.neck.out_channels': 8,
    'model.bbox_head.in_channels': 8,
    'model.bbox_head.feat_channels': 8,
    'model.bbox_head.stacked_convs': 1,
    'test_dataloader.dataset.pipeline.1.scale': SCALE,
}
PREVIOUS = b'a file of an earlier run'


class Inputs:
    """Config, checkpoint and images of two small models, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.image, self.other, self.nothing = folder / 'scene.png', folder / 'other.jpg', folder / 'empty.png'
        cv2.imwrite(str(self.image), scene(1, SCALE[1], SCALE[0]))
        cv2.imwrite(str(self.other), scene(2, SCALE[0], SCALE[1]))
        cv2.imwrite(str(self.nothing), empty(SCALE[1], SCALE[0]))
        self.segmentor = self._write('segmentor', 'mmseg::fcn/fcn_r18-d8_4xb2-80k_cityscapes-512x1024.py', SEGMENTOR)
        self.detector = self._write('detector', 'mmdet::retinanet/retinanet_r18_fpn_1x_coco.py', DETECTOR)

    def _write(self, name: str, base: str, options: dict) -> tuple[Path, Path]:
        config, checkpoint = self.folder / f'{name}.py', self.folder / f'{name}.pth'
        load_config(base, options).dump(config)
        model = zoo_model(str(config), scale=SCALE)
        if name == 'detector':
            samples = model.samples({'scene': scene(1, SCALE[1], SCALE[0]), 'empty': empty(SCALE[1], SCALE[0])})
            find_busy(model, samples[:1], samples[1], more_than=5, distinct=5)
        torch.save(model.loaded.model.state_dict(), checkpoint)
        return config, checkpoint


@pytest.fixture(scope='module')
def inputs(tmp_path_factory) -> Inputs:
    return Inputs(tmp_path_factory.mktemp('inputs'))


@pytest.fixture(autouse=True)
def default_scope():
    before = dict(DefaultScope._instance_dict)
    yield
    DefaultScope._instance_dict.clear()
    DefaultScope._instance_dict.update(before)


@pytest.fixture
def work_dir(tmp_path) -> Path:
    folder = tmp_path / 'work'
    folder.mkdir()
    (folder / 'model.onnx').write_bytes(PREVIOUS)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob('*')) if path.is_file()}


def run(work_dir: Path | None, *args: object) -> int:
    words = ['deploy', *map(str, args)]
    return cli.main([*words, '--work-dir', str(work_dir)] if work_dir is not None else words)


@pytest.fixture
def refused(work_dir, capsys):
    """Runs ``deploy`` on bad input; returns the line that it says."""

    def check(*args: object, folder: Path | None = None) -> str:
        before = files(work_dir)
        code = run(folder or work_dir, *args)
        captured = capsys.readouterr()
        assert code == 2, captured.err
        assert files(work_dir) == before == {'model.onnx': PREVIOUS}
        assert 'Traceback' not in captured.err + captured.out
        (line,) = captured.err.splitlines()
        assert line.startswith('error: ')
        return line

    return check


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


class TestBadConfig:
    @pytest.mark.parametrize(
        ('content', 'says'),
        [
            (None, 'does not exist'),
            ('model = dict(', 'syntax error'),
            ('model = dict(type=undefined)', 'undefined'),
            ("_base_ = './gone.py'", 'gone.py'),
            ('\0\1\2', 'cannot be read'),
            ("work_dir = 'x'", 'no model'),
            ('', 'no model'),
            (
                "model = dict(type='NoSuchModel')\ndefault_scope = 'mmdet'",
                r"'NoSuchModel' is not in the .*custom_imports",
            ),
            ("custom_imports = dict(imports=['no_such_module'])\nmodel = dict(type='X')", 'no_such_module'),
        ],
        ids=str,
    )
    def test_config(self, inputs, refused, tmp_path, content, says):
        path = tmp_path / 'config.py'
        if content is not None:
            path.write_text(content)
        assert re.search(says, refused(path, inputs.detector[1], inputs.image))

    @pytest.mark.parametrize('name', ['', '.', 'mmdet::no/such.py', 'no_such_package::x.py', 'config.txt'])
    def test_name(self, inputs, refused, name):
        assert 'config' in refused(name, inputs.detector[1], inputs.image)

    @pytest.mark.parametrize(
        ('options', 'says'),
        [
            (['model.neck.type=NoSuchNeck'], r"'NoSuchNeck' is not in the .*custom_imports"),
            (['model.backbone.no_such_argument=1'], 'no_such_argument'),
            (['deploy.exporter.type=NoSuchExporter'], r"'NoSuchExporter' is not in the exporter registry.*TorchScript"),
            (['deploy.exporter.no_such_argument=1'], 'no_such_argument'),
            (['deploy.backend.type=NoSuchBackend'], "'NoSuchBackend' is not in the backend registry"),
            (['deploy.rewriters.mine.type=NoSuchRewriter'], r"'NoSuchRewriter' is not registered.*custom_imports"),
            (['deploy.rewriters.mine.x=1'], 'has no type'),
            (['deploy.rewriters.batched_nms.no_such_argument=1'], 'BatchedNMS cannot take'),
            (['deploy.rewriters=5'], 'rewriters is 5'),
            (['deploy.no_such_key=1'], 'unknown key no_such_key'),
            (['deploy=5'], 'deploy is 5'),
            (['deploy.input.shape=5'], 'two positive integers'),
            (['deploy.input.dtype=float16'], "'float16' is not supported"),
            (['deploy.input.batch_size=0'], 'batch_size is 0'),
            (['deploy.tolerance.no_such=1'], 'no_such'),
            (['deploy.audit.allow=5'], 'audit.allow has 5'),
            (['deploy.optimize=maybe'], "optimize is 'maybe'"),
            (['model.test_cfg.nms.type=nms_match'], "'nms_match'; only 'nms' and 'soft_nms' can"),
            (['model.test_cfg.nms.iou_threshold.x=1'], 'cfg-options'),
            (['model.data_preprocessor.type=BaseDataPreprocessor'], 'BaseDataPreprocessor'),
            (['test_dataloader.dataset.pipeline.1.type=NoSuchStep'], 'NoSuchStep'),
            (['test_dataloader.dataset.pipeline.1.type=TestTimeAug'], 'test-time augmentation'),
            (['test_dataloader.dataset.pipeline=[]', 'test_pipeline=[]', 'val_dataloader=None'], 'no test pipeline'),
        ],
        ids=str,
    )
    def test_option(self, inputs, refused, options, says):
        assert re.search(says, refused(*inputs.detector, inputs.image, '--cfg-options', *options))

    @pytest.mark.parametrize(
        ('options', 'says'),
        [
            # steps that need more than an image, or make of it what is none
            (['test_dataloader.dataset.pipeline.1.type=LoadProposals'], 'LoadProposals'),
            (
                [
                    'test_dataloader.dataset.pipeline.2.type=RandomCrop',
                    'test_dataloader.dataset.pipeline.2.crop_size=5',
                ],
                'RandomCrop',
            ),
            (['test_dataloader.dataset.pipeline.1.scale=abc'], 'Resize'),
        ],
        ids=str,
    )
    def test_pipeline_that_fails_on_the_image(self, inputs, refused, options, says):
        assert says in refused(*inputs.detector, inputs.image, '--cfg-options', *options)

    def test_model_that_fails_on_the_image(self, inputs, work_dir, capsys):
        """In PyTorch, too: its test config lacks a key. The class is named."""
        assert run(work_dir, *inputs.detector, inputs.image, '--cfg-options', 'model.test_cfg.max_per_img=no') == 2
        err = capsys.readouterr().err
        assert err.startswith('error: ') and 'Traceback' not in err
        assert files(work_dir) == {'model.onnx': PREVIOUS}

    @pytest.mark.parametrize(
        ('content', 'says'),
        [
            (None, 'does not exist'),
            ('x = 1', "has no 'deploy'"),
            ('deploy = 5', 'deploy is 5'),
            ('deploy = dict(rewriters=dict(mine=5))', 'rewriters.mine is 5'),
            ("deploy = dict(rewriters=dict(mine=dict(type='Squeeze2')))", 'Squeeze2'),
        ],
        ids=str,
    )
    def test_deploy_config(self, inputs, refused, tmp_path, content, says):
        path = tmp_path / 'deploy.py'
        if content is not None:
            path.write_text(content)
        assert re.search(says, refused(*inputs.detector, inputs.image, '--deploy-cfg', path))

    def test_model_that_is_not_supported(self, inputs, refused):
        name = 'mmdet::maskformer/maskformer_r50_ms-16xb1-75e_coco.py'
        assert re.search('checkpoint|MaskFormer', refused(name, inputs.detector[1], inputs.image))

    def test_users_rewriter_without_a_target(self, inputs, refused, tmp_path, monkeypatch):
        (tmp_path / 'my_target.py').write_text(
            'from mmdeploy_lite.registry import REWRITERS\n'
            'from mmdeploy_lite.rewriting import FunctionRewriter\n'
            '@REWRITERS.register_module(force=True)\n'
            'class Gone(FunctionRewriter):\n'
            "    target = 'mmdet.models.dense_heads.GoneHead.predict'\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        (tmp_path / 'deploy.py').write_text(
            "custom_imports = dict(imports=['my_target'])\ndeploy = dict(rewriters=dict(mine=dict(type='Gone')))\n"
        )
        line = refused(*inputs.detector, inputs.image, '--deploy-cfg', tmp_path / 'deploy.py')
        assert "rewriter 'mine' (Gone)" in line and "has no module or class 'GoneHead'" in line


class Payload:
    def __reduce__(self):
        return os.system, ('touch executed',)


class TestBadCheckpoint:
    def checkpoint(self, inputs, path, change, kind='detector'):
        state = torch.load(getattr(inputs, kind)[1], weights_only=True)
        torch.save(change(state), path)
        return path

    @pytest.mark.parametrize('content', [None, b'', b'no checkpoint', pickle.dumps([1, 2])], ids=str)
    def test_file(self, inputs, refused, tmp_path, content):
        path = tmp_path / 'x.pth'
        if content is not None:
            path.write_bytes(content)
        assert 'x.pth' in refused(inputs.detector[0], path, inputs.image)

    def test_directory(self, inputs, refused, tmp_path):
        assert str(tmp_path) in refused(inputs.detector[0], tmp_path, inputs.image)

    def test_other_model(self, inputs, refused):
        assert '--allow-mismatch' in refused(inputs.detector[0], inputs.segmentor[1], inputs.image)

    def test_missing_keys(self, inputs, refused, tmp_path):
        path = self.checkpoint(inputs, tmp_path / 'x.pth', lambda state: dict(list(state.items())[:-2]))
        line = refused(inputs.detector[0], path, inputs.image)
        assert 'bbox_head' in line and '--allow-mismatch' in line

    def test_other_sizes(self, inputs, refused, tmp_path):
        key = 'bbox_head.retina_cls.weight'
        path = self.checkpoint(inputs, tmp_path / 'x.pth', lambda state: {**state, key: state[key][:9]})
        line = refused(inputs.detector[0], path, inputs.image)
        assert key in line and '--allow-mismatch' in line

    def test_going_on_with_a_mismatch(self, inputs, work_dir, tmp_path):
        path = self.checkpoint(inputs, tmp_path / 'x.pth', lambda state: dict(list(state.items())[:-2]), 'segmentor')
        assert run(work_dir, inputs.segmentor[0], path, inputs.image, '--allow-mismatch') == 0

    def test_unsafe(self, inputs, refused, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        path = self.checkpoint(inputs, tmp_path / 'x.pth', lambda state: dict(state_dict=state, meta=Payload()))
        assert '--unsafe-checkpoint' in refused(inputs.detector[0], path, inputs.image)
        assert not (tmp_path / 'executed').exists()


class TestBadImage:
    @pytest.mark.parametrize('content', [None, b'', b'not an image', b'\x89PNG\r\n\x1a\n'], ids=str)
    @pytest.mark.parametrize('place', [0, 1])
    def test_file(self, inputs, refused, tmp_path, content, place):
        path = tmp_path / 'x.png'
        if content is not None:
            path.write_bytes(content)
        images = [inputs.image, inputs.image]
        images[place] = path
        assert 'x.png' in refused(*inputs.segmentor, *images)

    def test_directory(self, inputs, refused, tmp_path):
        assert str(tmp_path) in refused(*inputs.segmentor, tmp_path)

    def test_nothing_detected_while_tracing(self, inputs, refused):
        """Dense heads drop what is below the threshold before NMS, where the config says so."""
        options = ['deploy.rewriters.filter_scores_and_topk.fixed_size=False', 'model.test_cfg.score_thr=0.99999']
        line = refused(*inputs.detector, inputs.nothing, '--cfg-options', *options)
        assert 'objects' in line and 'trained checkpoint' in line and 'score_thr' in line


class TestBadArguments:
    @pytest.mark.parametrize(
        'shape', [('0', '64'), ('64', '0'), ('x', '64'), ('64', '6.5'), ('1e2', '64'), ('', '64'), ('-64', '64')]
    )
    def test_shape(self, inputs, refused, shape):
        assert 'two positive integers' in refused(*inputs.segmentor, inputs.image, '--shape', *shape)

    @pytest.mark.parametrize(
        'words',
        [
            ['--shape', '64'],
            ['--shape', '64', '64', '64'],
            ['--shape'],
            ['--no-such-option'],
            ['--cfg-options', 'no_value'],
            ['--cfg-options', '=no_key'],
            ['--cfg-options', 'model.x=[1,(2'],
        ],
    )
    def test_words(self, inputs, work_dir, capsys, words):
        with pytest.raises(SystemExit) as caught:
            run(work_dir, *inputs.segmentor, inputs.image, *words)
        assert caught.value.code == 2
        captured = capsys.readouterr()
        assert 'error: ' in captured.err and 'Traceback' not in captured.err
        assert files(work_dir) == {'model.onnx': PREVIOUS}

    def test_slide_without_windows(self, inputs, refused):
        line = refused(*inputs.segmentor, inputs.image, '--cfg-options', 'model.test_cfg.mode=slide')
        assert "mode='slide' with crop_size=None and stride=None" in line

    def test_device(self, inputs, refused):
        assert 'nonsense' in refused(*inputs.segmentor, inputs.image, '--device', 'nonsense')


class TestWorkDir:
    def test_file_in_the_way(self, inputs, refused, tmp_path):
        (tmp_path / 'file').write_text('x')
        for folder in (tmp_path / 'file', tmp_path / 'file' / 'below'):
            line = refused(*inputs.segmentor, inputs.image, folder=folder)
            assert 'work dir' in line and str(folder) in line and '--work-dir' in line
        assert (tmp_path / 'file').read_text() == 'x'

    @pytest.mark.skipif(not Path('/proc/self').exists(), reason='needs a folder that root cannot write either')
    def test_read_only(self, inputs, refused):
        for folder in ('/proc', '/proc/below'):
            assert 'cannot be written' in refused(*inputs.segmentor, inputs.image, folder=Path(folder))

    def test_folder_in_the_place_of_the_file(self, tmp_path):
        from mmdeploy_lite.errors import WorkDirError
        from mmdeploy_lite.workdir import TemporaryFile, put_in_place

        (tmp_path / 'model.onnx').mkdir()
        with pytest.raises(WorkDirError, match=r'model\.onnx cannot be written'), TemporaryFile(tmp_path) as temporary:
            temporary.write_bytes(b'x')
            put_in_place(temporary, tmp_path / 'model.onnx')
        assert [path.name for path in tmp_path.iterdir()] == ['model.onnx']


class TestInterrupted:
    @pytest.mark.parametrize(
        'stage',
        [
            'mmdeploy_lite.prepare.build_model',
            'mmdeploy_lite.export.build.optimize',
            'mmdeploy_lite.export.attempt.save_model',
            'mmdeploy_lite.check.visualize.save_comparison',
            'mmdeploy_lite.apis.put_in_place',
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
        left = files(work_dir)
        assert left.pop('model.onnx') == PREVIOUS
        assert list(left) == ['compare_scene.png'] * stage.endswith('put_in_place')

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
