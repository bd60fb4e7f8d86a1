from __future__ import annotations

import json
import sys

import pytest
from mmengine.config import Config

from mmdeploy_lite.errors import ConfigError
from mmdeploy_lite.loading import infer_scope, load_config, read_config

MODEL = "model = dict(type='RetinaNet')\n"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes files into a directory that is also on the import path, and returns their path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    modules = set(sys.modules)

    def write(name: str, text: str) -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    yield write
    for name in set(sys.modules) - modules:  # the next test may write a module of the same name
        if getattr(sys.modules[name], '__file__', None) and str(tmp_path) in sys.modules[name].__file__:
            del sys.modules[name]


@pytest.mark.parametrize('suffix', ['.py', ''])
def test_a_config_that_a_library_ships(suffix):
    cfg = load_config(f'mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco{suffix}')
    assert cfg.model.type == 'RTMDet' and cfg.model.bbox_head.num_classes == 80
    assert infer_scope(cfg) == 'mmdet'


@pytest.mark.parametrize('base', ['mmseg::fcn/fcn_r50-d8_4xb2-40k_cityscapes-512x1024.py', 'other.py'])
def test_a_file_with_a_base(base, write):
    write(
        'other.py', "default_scope = 'mmseg'\nmodel = dict(type='EncoderDecoder', decode_head=dict(type='FCNHead'))\n"
    )
    path = write('config.py', f"_base_ = '{base}'\nmodel = dict(decode_head=dict(num_classes=3))\n")
    cfg = load_config(path)
    assert cfg.model.decode_head.type == 'FCNHead' and cfg.model.decode_head.num_classes == 3
    assert infer_scope(cfg) == 'mmseg'


def test_a_base_of_a_library_keeps_the_scope_mmengine_gives_it(write):
    path = write('config.py', "_base_ = 'mmdet::_base_/models/retinanet_r50_fpn.py'\n")
    cfg = load_config(path)
    assert 'default_scope' not in cfg and infer_scope(cfg) == 'mmdet'
    assert cfg.model._scope_ == 'mmdet'


def test_a_config_that_imports_its_types(write):
    write('base_t.py', 'from mmdet.models import RetinaNet\nmodel = dict(type=RetinaNet)\n')
    text = 'from mmengine.config import read_base\nwith read_base():\n    from .{} import *\n'
    assert infer_scope(load_config(write('config.py', text.format('base_t')))) == 'mmdet'
    with pytest.raises(ConfigError, match='config.py cannot be read: ConfigParsingError: .*gone.py not found'):
        load_config(write('config.py', text.format('gone')))


def test_a_json_config(write):
    assert load_config(write('config.json', json.dumps({'model': {'type': 'FCOS'}}))).model.type == 'FCOS'


def test_options_go_over_the_file(write):
    path = write('config.py', MODEL + "pipeline = [dict(type='A'), dict(type='B')]\n")
    cfg = load_config(path, {'model.test_cfg.nms_pre': 7, 'pipeline.1.type': 'C', 'new': (1, 2)})
    assert cfg.model.test_cfg.nms_pre == 7 and cfg.pipeline[1].type == 'C' and cfg.new == (1, 2)
    with pytest.raises(ConfigError, match='cfg-options .*pipeline.7.type.* do not fit'):
        load_config(path, {'pipeline.7.type': 'C'})


def test_a_deploy_config_needs_no_model(write):
    path = write('deploy.py', 'deploy = dict(rewriters=dict())\n')
    assert read_config(path).deploy == {'rewriters': {}}
    with pytest.raises(ConfigError, match='has no model'):
        load_config(path)


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ("model = dict(type='A')\nx = (1,\ny = 2\n", r'config.py has a syntax error in line 2'),
        (
            'x = 1\nmodel = dict(type=name)\n',
            r"config.py, line 2 cannot be read: NameError: name 'name' is not defined",
        ),
        ("_base_ = 'gone.py'\n", r'config.py names a base that does not exist: .*gone.py'),
        ("_base_ = 'broken.py'\n", r'broken.py has a syntax error in line 3'),
        ("_base_ = 'failing.py'\n", r'failing.py, line 2 cannot be read: ZeroDivisionError'),
        ("_base_ = ['one.py', 'one.py']\n", r'config.py cannot be read: KeyError: .*Duplicate key'),
        (
            "_base_ = 'mmdet::rtmdet/rtmdet_tinny_8xb32-300e_coco.py'\n",
            r'config.py names a base that is missing: .*did you mean .*mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py',
        ),
        ("_base_ = 'mmnothing::a/b.py'\n", r'config.py cannot be read: .*mmnothing'),
        ("_base_ = 'mmdeploy_lite::mmseg/gone.py'\n", r"config 'mmdeploy_lite::mmseg/gone.py'"),
        ("model = 'RetinaNet'\n", 'has no model'),
        ("model = dict(backbone=dict(type='A'))\n", 'has no model'),
        ("x = '\udcff'\n", 'cannot be read'),
    ],
)
def test_what_is_wrong_in_a_config(text, message, tmp_path, write):
    write('broken.py', 'a = 1\n\nb = ]\n')
    write('failing.py', 'a = 1\nb = 1 / 0\n')
    write('one.py', 'a = 1\n')
    path = tmp_path / 'config.py'
    path.write_bytes(text.encode('utf-8', 'surrogateescape'))
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(path)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('gone.py', r'config gone.py does not exist; give .* like mmdet::rtmdet'),
        ('', 'is a directory'),
        (
            'mmdet::rtmdet/rtmdet_tinny_8xb32-300e_coco.py',
            r'mmdet ships no such config; did you mean mmdet::rtmdet/rtmdet_tiny_8xb32',
        ),
        ('mmdet::rtmdet_tiny_8xb32-300e_coco.py', r'did you mean mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py'),
        ('mmdet::qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq', r'mmdet ships no such config; see .*configs'),
        ('mmnothing::a.py', r"no installed package 'mmnothing' ships configs"),
        ('numpy::a.py', r"no installed package 'numpy' ships configs"),
        ('mm-det::a.py', r"no installed package 'mm-det' ships configs"),
    ],
)
def test_a_config_that_is_not_there(name, message):
    with pytest.raises(ConfigError, match=message):
        load_config(name)


def test_a_file_of_another_kind(write):
    with pytest.raises(ConfigError, match='cannot be read: OSError: Only py/yml/yaml/json'):
        load_config(write('config.txt', MODEL))


def test_custom_imports_run(write):
    write('my_module_a.py', 'ran = True\n')
    load_config(write('config.py', MODEL + "custom_imports = dict(imports='my_module_a')\n"))
    assert sys.modules['my_module_a'].ran


def test_custom_imports_from_options(write):
    write('my_module_b.py', '')
    load_config(write('config.py', MODEL), {'custom_imports.imports': ['my_module_b']})
    assert 'my_module_b' in sys.modules


@pytest.mark.parametrize(
    ('module', 'message'),
    [
        (
            'my_module_gone',
            "custom_imports names 'my_module_gone', which cannot be imported: ModuleNotFoundError.*PYTHONPATH",
        ),
        ('my_module_bad', "custom_imports names 'my_module_bad', which cannot be imported: ZeroDivisionError"),
    ],
)
def test_custom_imports_that_fail(module, message, write, logged):
    write('my_module_bad.py', '1 / 0\n')
    imports = f"custom_imports = dict(imports=['json', '{module}']"
    with pytest.raises(ConfigError, match=message):
        load_config(write('config.py', MODEL + imports + ', allow_failed_imports=False)\n'))
    assert load_config(write('allowed.py', MODEL + imports + ', allow_failed_imports=True)\n'))
    assert len(logged) == 1 and module in logged[0]


def test_custom_imports_of_the_wrong_form(write):
    with pytest.raises(ConfigError, match='custom_imports is .*write dict'):
        load_config(write('config.py', MODEL + "custom_imports = ['a']\n"))


@pytest.mark.parametrize(
    ('content', 'scope'),
    [
        (dict(default_scope='mmseg', model=dict(type='Whatever')), 'mmseg'),
        (dict(model=dict(type='mmseg.EncoderDecoder')), 'mmseg'),
        (dict(model=dict(type='Own', data_preprocessor=dict(type='mmdet.DetDataPreprocessor'))), 'mmdet'),
        (dict(model=dict(type='Own', _scope_='mmdet')), 'mmdet'),
        (dict(model=dict(type='RetinaNet')), 'mmdet'),
        (dict(model=dict(type='EncoderDecoder')), 'mmseg'),
        (dict(model=dict(type='Own'), data_preprocessor=dict(type='SegDataPreProcessor')), 'mmseg'),
        (
            dict(default_scope='mmelse', model=dict(type='Own', data_preprocessor=dict(type='DetDataPreprocessor'))),
            'mmdet',
        ),
    ],
)
def test_scope(content, scope):
    assert infer_scope(Config(content)) == scope


def test_scope_of_a_class():
    from mmdet.models import RetinaNet

    assert infer_scope(Config(dict(model=dict(type=RetinaNet)))) == 'mmdet'


def test_scope_that_nothing_says():
    with pytest.raises(ConfigError, match="'Own' is a model of mmdet or of mmseg .*'mmelse'"):
        infer_scope(Config(dict(default_scope='mmelse', model=dict(type='Own'))))
