"""Cases 22 to 26: it runs at all, and says what to do where it cannot."""

from __future__ import annotations

import copy
import inspect
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer

from mmdeploy_lite.check.verify import Verification
from mmdeploy_lite.errors import AuditError, DeployError, ExportError
from mmdeploy_lite.testing.exporting import Exported, export
from mmdeploy_lite.testing.models import TestModel, find_busy, zoo_model

from .conftest import IMAGES, SCALE, TINY, exported_equal, tiny

Images = dict[str, np.ndarray]
ROOT = Path(__file__).resolve().parents[2]
NAMES = [f'thing {index}' for index in range(5)]

HEADS = '''
import torch
from mmdet.models.dense_heads import RetinaHead
from mmdet.models.detectors import RetinaNet
from mmdet.registry import MODELS

from mmdeploy_lite.registry import REWRITERS
from mmdeploy_lite.rewriting import FunctionRewriter


@MODELS.register_module()
class TemperedHead(RetinaHead):
    """Its own signature and its own post-processing, around the library's."""

    def predict(self, x, batch_data_samples, rescale=False):
        metas = [sample.metainfo for sample in batch_data_samples]
        return self.predict_by_feat(*self(x), temperature=1.5, metas=metas, rescale=rescale)

    def predict_by_feat(self, cls_scores, bbox_preds, *, temperature, metas, rescale):
        cls_scores = [score / temperature for score in cls_scores]
        results = super().predict_by_feat(cls_scores, bbox_preds, batch_img_metas=metas, rescale=rescale)
        for result in results:
            result.scores = result.scores**0.5
        return results


@MODELS.register_module()
class OwnRetinaNet(RetinaNet):
    def predict(self, batch_inputs, batch_data_samples, rescale=True):
        mirrored = super().predict(batch_inputs.flip(3), batch_data_samples, rescale=rescale)
        return mirrored


@MODELS.register_module()
class ImpatientHead(RetinaHead):
    """Decides by a traced value; the rewriter below does without."""

    def predict_by_feat(self, cls_scores, bbox_preds, **kwargs):
        return super().predict_by_feat(self.sharpen(cls_scores), bbox_preds, **kwargs)

    def sharpen(self, cls_scores):
        if cls_scores[0].max() > 0:
            cls_scores = [score * 1.1 for score in cls_scores]
        return cls_scores


@REWRITERS.register_module()
class SharpenAlways(FunctionRewriter):
    target = 'PACKAGE.heads.ImpatientHead.sharpen'

    def __call__(self, origin, head, cls_scores):
        factor = torch.where(cls_scores[0].max() > 0, 1.1, 1.0)
        return [score * factor for score in cls_scores]


@MODELS.register_module()
class NumPyHead(RetinaHead):
    def predict_by_feat(self, *args, **kwargs):
        results = super().predict_by_feat(*args, **kwargs)
        for result in results:
            result.scores = torch.from_numpy(result.scores.numpy() * 0.5)
        return results


@MODELS.register_module()
class CummaxHead(RetinaHead):
    def predict_by_feat(self, cls_scores, bbox_preds, **kwargs):
        return super().predict_by_feat([score.cummax(3)[0] for score in cls_scores], bbox_preds, **kwargs)


@MODELS.register_module()
class RaisingHead(RetinaHead):
    def predict_by_feat(self, cls_scores, bbox_preds, **kwargs):
        if torch.jit.is_tracing():
            raise RuntimeError('nobody may look')
        return super().predict_by_feat(cls_scores, bbox_preds, **kwargs)
'''


@pytest.fixture(scope='session')
def package(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A user's own package with heads, and a config that imports it."""
    folder, name = tmp_path_factory.mktemp('user'), 'users_project_of_case_23'
    Path(folder, name).mkdir()
    Path(folder, name, '__init__.py').touch()
    Path(folder, name, 'heads.py').write_text(HEADS.replace('PACKAGE', name))
    base = TINY['RetinaNet'][0]
    Path(folder, 'config.py').write_text(
        f"_base_ = '{base}'\ncustom_imports = dict(imports=['{name}.heads'], allow_failed_imports=False)\n"
    )
    sys.path.insert(0, str(folder))
    yield f'{folder}/config.py'
    sys.path.remove(str(folder))


def users_model(config: str, **types: str) -> TestModel:
    """A model of the user's package; ``model='Name'`` or ``head='Name'``."""
    keys = {'model': 'model.type', 'head': 'model.bbox_head.type'}
    return zoo_model(config, {**TINY['RetinaNet'][1], **{keys[key]: kind for key, kind in types.items()}}, scale=SCALE)


@pytest.mark.parametrize('types', [{'head': 'TemperedHead'}, {'model': 'OwnRetinaNet'}], ids=['head', 'detector'])
def test_case_23_a_subclass_exports_without_a_rewriter(
    types: dict[str, str], package: str, images: Images, tmp_path: Path
) -> None:
    model = users_model(package, **types)
    samples = model.samples(images)
    find_busy(model, samples[:3], None)
    exported_equal(model, samples, tmp_path)


@pytest.mark.parametrize(
    ('head', 'error', 'method', 'says'),
    [
        ('ImpatientHead', AuditError, 'sharpen', 'if cls_scores[0].max() > 0:'),
        ('NumPyHead', AuditError, 'predict_by_feat', 'result.scores.numpy()'),
        ('CummaxHead', ExportError, 'predict_by_feat', 'aten::cummax'),
        ('RaisingHead', ExportError, 'predict_by_feat', 'nobody may look'),
    ],
)
def test_case_23_what_cannot_be_traced_is_named_with_the_rewriter_to_write(
    head: str,
    error: type[DeployError],
    method: str,
    says: str,
    package: str,
    images: Images,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    model = users_model(package, head=head)
    samples = model.samples(images)
    find_busy(model, samples[:3], None)
    with pytest.raises(error) as caught:
        export(model.task, [samples[0], samples[2]], tmp_path)
    message = str(caught.value)
    path = f'users_project_of_case_23.heads.{head}.{method}'
    assert says in message and path in message
    name = 'My' + method.title().replace('_', '')
    assert f'class {name}(FunctionRewriter):\n        target = {path!r}' in message
    assert f"deploy = dict(rewriters=dict(mine=dict(type='{name}')))" in message
    assert capsys.readouterr().out.count('\n') < 5, 'no graph is printed'


def test_case_23_the_rewriter_that_the_message_asks_for(package: str, images: Images, tmp_path: Path) -> None:
    model = users_model(package, head='ImpatientHead')
    samples = model.samples(images)
    find_busy(model, samples[:3], None)
    deploy = dict(rewriters=dict(mine=dict(type='SharpenAlways')))
    exported, _ = exported_equal(model, samples, tmp_path, deploy=deploy)
    assert exported.graph.fired['mine']


def run_python(code: str, *args: str, **environment: str) -> subprocess.CompletedProcess:
    """Run code in a process of its own, from the source tree."""
    return subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', textwrap.dedent(code), *args],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1', **environment},
    )


HIDE = """
import sys


class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in HIDDEN:
            raise ModuleNotFoundError(f'{name} is hidden', name=name)


sys.meta_path.insert(0, Hide())
"""


def test_case_24_the_exporter_is_the_same_where_dynamo_is_the_default() -> None:
    pytest.importorskip('onnxscript')  # the other half of the case
    if tuple(map(int, torch.__version__.split('.')[:2])) >= (2, 9):
        assert inspect.signature(torch.onnx.export).parameters['dynamo'].default is True
    assert run_python(EXPORT_CONVOLUTION).stdout == 'Conv\n'


def test_case_24_without_onnxscript() -> None:
    code = "HIDDEN = ('onnxscript', 'onnx_ir')\n" + HIDE + EXPORT_CONVOLUTION
    done = run_python(code + "assert 'onnxscript' not in sys.modules\n")
    assert (done.stdout, done.returncode) == ('Conv\n', 0), done.stderr


EXPORT_CONVOLUTION = """
import torch
from mmdeploy_lite.export import TorchScriptExporter
graph = TorchScriptExporter().export(torch.nn.Conv2d(3, 4, 3).eval(), [torch.rand(1, 3, 8, 8)], ['x'], ['y'], {})
print(*(node.op_type for node in graph.model.graph.node))
"""


@pytest.fixture(scope='module')
def mask_rcnn_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TestModel, Exported, Verification]:
    """The file with the most kinds of operators."""
    folder = tmp_path_factory.mktemp('file')
    model = tiny('Mask R-CNN')
    samples = model.samples(IMAGES)
    find_busy(model, samples[:3], samples[3])
    exported, verification = exported_equal(model, samples, folder)
    return folder / 'instance_segmentation.onnx', model, exported, verification


def test_case_25_plain_onnxruntime_loads_and_runs_the_file(mask_rcnn_file: Any, tmp_path: Path) -> None:
    """In a process where neither torch nor any of the libraries can be imported."""
    path, model, exported, _ = mask_rcnn_file
    sample = model.samples(IMAGES)[0]
    np.savez(tmp_path / 'feeds.npz', **model.task.feeds([sample]))
    code = "HIDDEN = ('torch', 'mmcv', 'mmdet', 'mmengine', 'onnx', 'mmdeploy_lite')\n" + HIDE + RUN_FILE
    done = run_python(code, str(path), str(tmp_path / 'feeds.npz'))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(len(exported.answers(sample)[0]))]


RUN_FILE = """
import numpy as np
import onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])
dets, labels, num_dets, masks = session.run(None, dict(np.load(sys.argv[2])))
print(num_dets[0])
"""


@pytest.fixture(scope='module')
def healthy_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess, Path]:
    """``tools/deploy.py`` with a checkpoint as mmengine's Runner writes it (case 22), on two images."""
    folder = tmp_path_factory.mktemp('deploy')
    model = tiny('RetinaNet')
    samples = model.samples(IMAGES)
    find_busy(model, samples[:3], samples[3])
    cfg = copy.deepcopy(model.loaded.cfg)
    cfg.test_dataloader.dataset.pipeline = model.steps
    cfg.test_dataloader.dataset.metainfo = dict(classes=NAMES)
    cfg.dump(str(folder / 'tiny.py'))
    scalars = {'train/loss': HistoryBuffer([1.0, 0.5], [1, 1])}
    meta = dict(epoch=np.float64(12), seed=np.arange(3), dataset_meta=dict(classes=NAMES))
    state = model.task.model.state_dict()
    torch.save(dict(meta=meta, state_dict=state, message_hub=dict(log_scalars=scalars)), folder / 'tiny.pth')
    for name in ('landscape', 'portrait'):
        cv2.imwrite(str(folder / f'{name}.png'), IMAGES[name])
    command = [sys.executable, str(ROOT / 'tools/deploy.py'), 'tiny.py', 'tiny.pth', 'landscape.png', 'portrait.png']
    done = subprocess.run(
        [*command, '--work-dir', 'out'],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=folder,
        env={**os.environ, 'OMP_NUM_THREADS': '1'},
    )
    return done, folder / 'out'


def test_case_22_a_checkpoint_of_a_runner(healthy_run: tuple[subprocess.CompletedProcess, Path]) -> None:
    """A message hub with HistoryBuffer, a NumPy scalar and an array in ``meta``: ``weights_only=True`` refuses them."""
    done, out = healthy_run
    assert done.returncode == 0, done.stderr
    with pytest.raises(Exception, match='[Ww]eights.only'):
        torch.load(out.parent / 'tiny.pth', weights_only=True)
    report = json.loads((out / 'report.json').read_text())
    assert report['equal']


def test_case_26_a_healthy_run_prints_no_warning(healthy_run: tuple[subprocess.CompletedProcess, Path]) -> None:
    done, out = healthy_run
    text = done.stdout + done.stderr
    assert {path.name for path in out.iterdir()} >= {
        'model.onnx',
        'report.json',
        'compare_landscape.png',
        'compare_portrait.png',
    }
    noise = ('warn', 'deprecat', 'traceback', 'error', 'site-packages')
    assert [line for line in text.splitlines() if any(word in line.lower() for word in noise)] == []
    logged = [line for line in text.splitlines() if ' - mmengine - ' in line]
    assert len(logged) <= 1 and all('mmcv has no compiled extension' in line for line in logged)
