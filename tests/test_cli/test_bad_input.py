"""Bad input is one clear line and exit 2, and nothing is half-written."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path

import pytest
import torch

from .conftest import PREVIOUS, files, run


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
        """In PyTorch, too: a number is a word. That is said, and no rewriter is asked for."""
        assert run(work_dir, *inputs.detector, inputs.image, '--cfg-options', 'model.test_cfg.max_per_img=no') == 2
        err = capsys.readouterr().err
        assert err.startswith('error: the model itself, in PyTorch, fails on scene.png at ') and 'Traceback' not in err
        assert 'TypeError' in err and 'InstanceData.__getitem__ (' in err and 'register_module' not in err
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
        """Without the rewriter, dense heads drop what is below the threshold before NMS."""
        options = ['deploy.rewriters.filter_scores_and_topk=None', 'model.test_cfg.score_thr=0.99999']
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

    def test_unknown_option_shows_those_that_there_are(self, inputs, work_dir, capsys):
        with pytest.raises(SystemExit):
            run(work_dir, *inputs.segmentor, inputs.image, '--workdir', 'x')
        err = capsys.readouterr().err
        assert 'error: unrecognized arguments: --workdir x' in err and '--work-dir DIR' in err

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
        from mmdeploy_lite.workdir import Staging

        (tmp_path / 'model.onnx').mkdir()
        with pytest.raises(WorkDirError, match=r'model\.onnx cannot be written'), Staging(tmp_path) as staging:
            staging.folder.joinpath('model.onnx').write_bytes(b'x')
            staging.publish('model.onnx')
        assert [path.name for path in tmp_path.iterdir()] == ['model.onnx']
