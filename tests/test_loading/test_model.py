from __future__ import annotations

import copy

import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.registry import MODELS, TRANSFORMS, DefaultScope
from torch import nn

from mmdeploy_lite.errors import CheckpointError, ConfigError, UnsupportedError
from mmdeploy_lite.loading import build_model, file_sha256, load_config, model_config, use_scope


def test_a_detector_with_its_weights(detector_cfg, tmp_path):
    before = copy.deepcopy(detector_cfg)
    source = build_model(detector_cfg, None)
    with torch.no_grad():
        for parameter in source.model.parameters():
            parameter.normal_()
    path = tmp_path / 'détecteur.pth'
    torch.save({'state_dict': source.model.state_dict(), 'meta': {'dataset_meta': {'CLASSES': ['x'] * 80}}}, path)

    loaded = build_model(detector_cfg, path)
    assert loaded.scope == 'mmdet' and loaded.num_classes == 80
    assert loaded.checkpoint == str(path) and loaded.checkpoint_sha256 == file_sha256(path)
    weights = source.model.state_dict()
    assert all(torch.equal(value, weights[key]) for key, value in loaded.model.state_dict().items())
    assert not any(module.training for module in loaded.model.modules())
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert loaded.dataset_meta['classes'] == ('x',) * 80
    assert loaded.model.dataset_meta == loaded.dataset_meta and loaded.model.cfg is detector_cfg
    assert detector_cfg._cfg_dict == before._cfg_dict and 'Pretrained' in str(before.model.backbone.init_cfg)


def test_nothing_is_left_to_download(detector_cfg, segmentor_cfg):
    assert segmentor_cfg.model.pretrained.startswith('open-mmlab://')
    for cfg in (detector_cfg, segmentor_cfg):
        for module in build_model(cfg, None).model.modules():
            assert 'Pretrained' not in str(getattr(module, 'init_cfg', None)), type(module)


def test_pretrained_goes_at_every_depth(detector_cfg):
    pretrained = dict(type='Pretrained', checkpoint='torchvision://resnet18')
    detector_cfg.merge_from_dict(
        {
            'model.teacher_ckpt': 'https://example.org/teacher.pth',
            'model.neck': [dict(type='FPN', init_cfg=pretrained), dict(type='Own', pretrained=True)],
            'model.bbox_head.init_cfg': [dict(type='Normal', layer='Conv2d'), pretrained],
            'model.backbone.plugins': [
                dict(inner=dict(pretrained='x.pth', init_cfg=dict(type='Xavier', layer='Conv2d')))
            ],
        }
    )
    model = model_config(detector_cfg, 'mmdet')
    assert model.teacher_ckpt is None
    assert model.neck[0].init_cfg is None and model.neck[1].pretrained is False
    assert model.bbox_head.init_cfg is None
    assert model.backbone.plugins[0].inner.pretrained is None
    assert model.backbone.plugins[0].inner.init_cfg == dict(type='Xavier', layer='Conv2d')
    assert detector_cfg.model.teacher_ckpt is not None


def test_sync_batchnorm_becomes_batchnorm(segmentor_cfg):
    assert segmentor_cfg.model.backbone.norm_cfg.type == 'SyncBN'
    model = build_model(segmentor_cfg, None).model
    assert not any(isinstance(module, nn.SyncBatchNorm) for module in model.modules())
    assert sum(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()) > 20
    model(torch.zeros(1, 3, 32, 32))  # SyncBatchNorm would need a GPU


def test_one_library_after_the_other(detector_cfg, segmentor_cfg):
    for cfg, scope, transform in (
        (detector_cfg, 'mmdet', 'PackDetInputs'),
        (segmentor_cfg, 'mmseg', 'PackSegInputs'),
        (detector_cfg, 'mmdet', 'PackDetInputs'),
        (detector_cfg, 'mmdet', 'PackDetInputs'),
        (segmentor_cfg, 'mmseg', 'PackSegInputs'),
    ):
        assert build_model(cfg, None).scope == scope
        assert DefaultScope.get_current_instance().scope_name == scope
        assert type(TRANSFORMS.build(dict(type=transform))).__name__ == transform


def test_no_warning(segmentor_cfg, recwarn, logged):
    build_model(segmentor_cfg, None)
    assert [str(warning.message) for warning in recwarn if issubclass(warning.category, UserWarning)] == []
    assert logged == []


def test_a_data_preprocessor_beside_the_model(detector_cfg):
    detector_cfg.data_preprocessor = detector_cfg.model.pop('data_preprocessor')
    detector_cfg.data_preprocessor.mean = [1.0, 2.0, 3.0]
    assert build_model(detector_cfg, None).model.data_preprocessor.mean.flatten().tolist() == [1, 2, 3]


def test_a_custom_module(detector_cfg, tmp_path, monkeypatch):
    (tmp_path / 'my_heads_t.py').write_text(
        'from mmdet.models import RetinaHead\n'
        'from mmdet.registry import MODELS\n'
        '@MODELS.register_module()\n'
        'class MyRetinaHeadT(RetinaHead):\n'
        '    pass\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    detector_cfg.custom_imports = dict(imports=['my_heads_t'], allow_failed_imports=False)
    detector_cfg.model.bbox_head.type = 'MyRetinaHeadT'
    path = tmp_path / 'config.py'
    detector_cfg.dump(path)
    assert type(build_model(load_config(path), None).model.bbox_head).__name__ == 'MyRetinaHeadT'


def test_an_unknown_name(detector_cfg):
    detector_cfg.model.bbox_head.type = 'RetinaHeadd'
    with pytest.raises(ConfigError) as caught:
        build_model(detector_cfg, None)
    message = str(caught.value)
    assert "'RetinaHeadd' is not in the mmdet::model registry" in message and 'did you mean RetinaHead' in message
    assert "custom_imports = dict(imports=['my_project.my_module'], allow_failed_imports=False)" in message


def test_a_name_of_a_library_that_is_not_installed(detector_cfg):
    detector_cfg.model.backbone = ConfigDict(type='notthere.ResNet')
    with pytest.raises(UnsupportedError, match="'notthere.ResNet' of notthere, which is not installed"):
        build_model(detector_cfg, None)


@pytest.mark.parametrize(
    ('error', 'kind', 'message'),
    [
        (
            ModuleNotFoundError("No module named 'timm'"),
            UnsupportedError,
            "a package that is missing: No module named 'timm'",
        ),
        (RuntimeError('transformers is not installed'), UnsupportedError, 'missing: transformers is not installed'),
        (RuntimeError('Please run "pip install einops"'), UnsupportedError, 'pip install einops'),
        (
            AssertionError('depth must be\neven'),
            ConfigError,
            "'RetinaNet' cannot be built: AssertionError: depth must be even",
        ),
    ],
)
def test_a_constructor_that_fails(error, kind, message, detector_cfg, monkeypatch):
    class Failing(nn.Module):
        def __init__(self, **kwargs) -> None:
            raise error

    monkeypatch.setitem(MODELS.module_dict, 'FailingT', Failing)
    detector_cfg.model.neck = ConfigDict(type='mmengine.FailingT')
    with pytest.raises(kind, match=message):
        build_model(detector_cfg, None)


def test_an_argument_that_does_not_exist(detector_cfg):
    detector_cfg.model.neck.gone = 1
    with pytest.raises(ConfigError, match="cannot be built: TypeError: .*unexpected keyword argument 'gone'"):
        build_model(detector_cfg, None)


def test_a_checkpoint_of_another_model(detector_cfg, tmp_path, logged):
    path = tmp_path / 'a.pth'
    torch.save(build_model(detector_cfg, None).model.state_dict(), path)
    detector_cfg.model.bbox_head.num_classes = 3
    with pytest.raises(CheckpointError, match=r'bbox_head.retina_cls.weight is \(720, .*, the model has \(27, '):
        build_model(detector_cfg, path)
    assert build_model(detector_cfg, path, allow_mismatch=True).num_classes == 3


def test_an_unsafe_checkpoint(detector_cfg, tmp_path):
    path = tmp_path / 'a.pth'
    torch.save({'state_dict': build_model(detector_cfg, None).model.state_dict(), 'args': slice(1)}, path)
    with pytest.raises(CheckpointError, match='builtins.slice'):
        build_model(detector_cfg, path)
    build_model(detector_cfg, path, unsafe_checkpoint=True)


@pytest.mark.parametrize('device', ['nothing', 'meta:x', 'cuda:99'])
def test_a_device_that_is_not_there(device, detector_cfg):
    with pytest.raises(UnsupportedError, match=f"device '{device}' cannot be used: .*--device cpu"):
        build_model(detector_cfg, None, device=device)


def test_a_library_that_cannot_be_imported(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, 'mmseg.utils', None)
    with pytest.raises(UnsupportedError, match=r'mmseg cannot be imported: .*mmdeploy_lite\[export\]'):
        use_scope('mmseg')


@pytest.mark.parametrize(
    ('name', 'scope', 'classes', 'first'),
    [('yolox_nano_coco', 'mmdet', 80, 'person'), ('cgnet_camvid11', 'mmseg', 11, 'class_0')],
)
def test_real_models(name, scope, classes, first, real_models):
    loaded = build_model(load_config(real_models / f'{name}.py'), real_models / f'{name}.pth')
    assert (loaded.scope, loaded.num_classes, loaded.dataset_meta['classes'][0]) == (scope, classes, first)
    assert len(loaded.dataset_meta['classes']) == len(loaded.dataset_meta['palette']) == classes
