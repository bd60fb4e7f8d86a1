"""One deploy config from four places."""

from __future__ import annotations

import copy
import textwrap

import pytest

from mmdeploy_lite.deploy_config import (
    check_shape,
    deploy_section,
    plain_dict,
    resolve_deploy_config,
    split_options,
)
from mmdeploy_lite.errors import ConfigError, DeployError, RewriteError
from mmdeploy_lite.loading import read_config

DEFAULT = {
    'exporter': {'type': 'TorchScriptExporter'},
    'backend': {'type': 'ONNXRuntimeBackend', 'providers': ['CPUExecutionProvider']},
    'input': {'dtype': 'float32', 'shape': None, 'batch_size': 1},
    'rescale': True,
    'optimize': True,
    'tolerance': {},
    'rewriters': {'nms': {'type': 'NMS', 'x': 1, 'y': 2}, 'slide': {'type': 'Slide'}},
}


def test_default_alone():
    config = resolve_deploy_config(DEFAULT, None, None, {})
    assert config.exporter == DEFAULT['exporter']
    assert config.rewriters == DEFAULT['rewriters']
    assert (config.rescale, config.optimize, config.tolerance, config.audit, config.required) == (
        True,
        True,
        {},
        {},
        set(),
    )


@pytest.mark.parametrize('place', [0, 1, 2])
class TestEachPlace:
    """Deploy config file, ``deploy`` of the model config, command line."""

    def resolve(self, place, layer):
        layers = [None, None, {}]
        layers[place] = layer
        return resolve_deploy_config(DEFAULT, *layers)

    def test_override(self, place):
        assert self.resolve(place, {'rewriters': {'nms': {'x': 9}}}).rewriters['nms'] == {'type': 'NMS', 'x': 9, 'y': 2}

    def test_changed_type_replaces_the_arguments(self, place):
        config = self.resolve(place, {'rewriters': {'nms': {'type': 'Mine', 'z': 1}}})
        assert config.rewriters['nms'] == {'type': 'Mine', 'z': 1}
        assert config.required == {'nms'}

    def test_add(self, place):
        config = self.resolve(place, {'rewriters': {'head': {'type': 'Head'}}})
        assert list(config.rewriters) == ['nms', 'slide', 'head']
        assert config.required == {'head'}

    def test_drop(self, place):
        assert list(self.resolve(place, {'rewriters': {'slide': None}}).rewriters) == ['nms']

    def test_other_settings(self, place):
        config = self.resolve(place, {'rescale': False, 'input': {'dtype': 'uint8'}, 'tolerance': {'score': 1e-3}})
        assert config.rescale is False
        assert config.input == {'dtype': 'uint8', 'shape': None, 'batch_size': 1}
        assert config.tolerance == {'score': 1e-3}

    def test_changed_type_of_exporter_or_backend_replaces_the_arguments(self, place):
        config = self.resolve(place, {'exporter': {'type': 'Other'}, 'backend': {'providers': ['X']}})
        assert config.exporter == {'type': 'Other'}
        assert config.backend == {'type': 'ONNXRuntimeBackend', 'providers': ['X']}


def test_precedence_of_the_places():
    layers = [{'rewriters': {'nms': {'x': place}}, 'input': {'shape': (place, place)}} for place in (1, 2, 3)]
    for count in (1, 2, 3):
        config = resolve_deploy_config(DEFAULT, *layers[:count])
        assert config.rewriters['nms']['x'] == count
        assert config.input['shape'] == (count, count)
    assert resolve_deploy_config(DEFAULT, layers[0], None, layers[2]).rewriters['nms']['x'] == 3


def test_dropped_in_one_place_and_added_again_in_a_later_one():
    drop, add = {'rewriters': {'slide': None}}, {'rewriters': {'slide': {'type': 'Slide', 'x': 1}}}
    assert resolve_deploy_config(DEFAULT, drop, add).rewriters['slide'] == {'type': 'Slide', 'x': 1}
    config = resolve_deploy_config(DEFAULT, add, drop)
    assert 'slide' not in config.rewriters
    assert config.required == set()


def test_built_in_rewriters_that_a_users_file_inherits_are_not_named_by_the_user():
    """A deploy config that takes the shipped one as its base holds all of its rewriters."""
    layer = copy.deepcopy(DEFAULT)
    layer['rewriters']['head'] = {'type': 'Head'}
    layer['rewriters']['slide'] = {'type': 'MySlide'}
    assert resolve_deploy_config(DEFAULT, layer).required == {'head', 'slide'}


def test_precision_by_name_or_dict_and_the_later_layer_counts():
    def resolve(*layers):
        return resolve_deploy_config({}, *(dict(precision=layer) for layer in layers)).precision

    assert resolve() is None and resolve('fp16') == dict(type='fp16')
    assert resolve('fp16', 'fp32') is None
    int8 = dict(type='int8', calibration='images', max_loss=0.1)
    assert resolve(int8, dict(max_loss=0.2)) == {**int8, 'max_loss': 0.2}
    assert resolve(int8, 'fp16') == dict(type='fp16')
    for options in (
        {'deploy.precision': 'int8', 'deploy.precision.num_images': 3},
        {'deploy.precision.num_images': 3, 'deploy.precision': 'int8'},
    ):
        assert split_options(options)[1] == dict(precision=dict(type='int8', num_images=3))
    assert split_options({'deploy.precision': 'fp32'})[1] == dict(precision='fp32')
    assert resolve(int8, dict(type='int8', num_images=3)) == {**int8, 'num_images': 3}


def test_layers_are_not_changed_and_not_shared():
    default, layer = copy.deepcopy(DEFAULT), {'input': {'shape': [64, 96]}, 'rewriters': {'nms': {'x': [1]}}}
    before = copy.deepcopy(layer)
    config = resolve_deploy_config(default, layer)
    config.input['shape'].append(3)
    config.rewriters['nms']['x'].append(2)
    config.backend['providers'].append('X')
    assert default == DEFAULT
    assert layer == before


@pytest.mark.parametrize(
    ('layer', 'says'),
    [
        ('exporter', 'deploy is .*; it must be a dict'),
        ({'rewriter': {}}, 'unknown key rewriter; known are audit, backend'),
        ({'required': {'nms'}}, 'unknown key required'),
        ({'exporter': 'Torch'}, r"deploy\.exporter is 'Torch'; it must be a dict"),
        ({'input': None}, r'deploy\.input is None; it must be a dict'),
        ({'input': 5}, r'deploy\.input is 5; it must be a dict'),
        ({'tolerance': 1e-3}, r'deploy\.tolerance is 0\.001; it must be a dict'),
        ({'audit': ['x']}, r'deploy\.audit is .*; it must be a dict'),
        ({'rescale': 'no'}, r"deploy\.rescale is 'no'; it must be True or False"),
        ({'optimize': {}}, r'deploy\.optimize is \{\}; it must be True or False'),
        ({'winograd': 'always'}, r"deploy\.winograd is 'always'; it must be True, False or None"),
        ({'audit': {'alow': []}}, r'deploy\.audit has the unknown key alow; known is allow'),
        ({'input': {'size': 5}}, r'deploy\.input has the unknown key size; known are .*runtime_pipeline'),
        ({'input': {'runtime_pipeline': 'no'}}, r"deploy\.input\.runtime_pipeline is 'no'; it must be True or False"),
        ({'input': {'batch_size': 0}}, r'deploy\.input\.batch_size is 0'),
        ({'input': {'batch_size': True}}, r'deploy\.input\.batch_size is True'),
        ({'input': {'batch_size': '2'}}, r"deploy\.input\.batch_size is '2'"),
        ({'input': {'shape': (64,)}}, r'the shape \(64,\) is not two positive integers'),
        ({'input': {'shape': (640640, 640)}}, '640640 x 640 has 410 megapixels'),
        ({'rewriters': ['nms']}, r'rewriters is \[.*; write dict'),
        ({'rewriters': {'nms': 'NMS'}}, r"rewriters\.nms is 'NMS'"),
        ({'rewriters': {'unknown': {'x': 1}}}, r'rewriters\.unknown has no type'),
    ],
)
def test_bad_layer(layer, says):
    with pytest.raises((ConfigError, RewriteError), match=says):
        resolve_deploy_config(DEFAULT, layer)


@pytest.mark.parametrize('shape', [(64, 96), [64, 96]])
def test_shape(shape):
    assert check_shape(shape) == (64, 96)


def test_no_shape():
    assert check_shape(None) is None


@pytest.mark.parametrize(
    'shape', [640, '640', '64', (64,), (64, 96, 3), (0, 64), (64, -1), (64.0, 96), ('64', '96'), (True, 64), ()]
)
def test_shape_that_is_not_two_positive_integers(shape):
    with pytest.raises(ConfigError, match='is not two positive integers'):
        check_shape(shape)


def test_split_options():
    model, deploy = split_options(
        {
            'model.test_cfg.mode': 'whole',
            'deployment.x': 1,
            'deploy.rescale': False,
            'deploy.rewriters.nms.type': 'Mine',
            'deploy.rewriters.nms.z': 1,
            'deploy.rewriters.slide': 'None',
            'deploy.input.shape': (64, 96),
        }
    )
    assert model == {'model.test_cfg.mode': 'whole', 'deployment.x': 1}
    assert deploy == {
        'rescale': False,
        'rewriters': {'nms': {'type': 'Mine', 'z': 1}, 'slide': None},
        'input': {'shape': (64, 96)},
    }


def test_split_options_of_nothing():
    assert split_options(None) == ({}, {})
    assert split_options({}) == ({}, {})


def test_split_options_changed_type_replaces_the_arguments_of_the_config():
    _, options = split_options({'deploy.rewriters.nms.type': 'Mine'})
    assert resolve_deploy_config(DEFAULT, None, None, options).rewriters['nms'] == {'type': 'Mine'}


def test_split_options_whole_section():
    _, deploy = split_options({'deploy': {'rescale': False}, 'deploy.optimize': False})
    assert deploy == {'rescale': False, 'optimize': False}


def test_split_options_does_not_change_what_it_is_given():
    options = {'deploy': {'input': {'dtype': 'uint8'}}, 'deploy.input.batch_size': 2}
    before = copy.deepcopy(options)
    assert split_options(options)[1] == {'input': {'dtype': 'uint8', 'batch_size': 2}}
    assert options == before


@pytest.mark.parametrize(
    'options',
    [{'deploy': 5}, {'deploy': 'x'}, {'deploy.input': 5, 'deploy.input.shape': 3}, {'deploy.': 1}, {'deploy..x': 1}],
)
def test_split_options_that_do_not_fit(options):
    with pytest.raises(ConfigError, match='deploy'):
        resolve_deploy_config(DEFAULT, split_options(options)[1])


def test_deploy_section(tmp_path):
    path = tmp_path / 'deploy.py'
    path.write_text(
        textwrap.dedent("""
            _base_ = 'mmdeploy_lite::mmseg/segmentation_onnxruntime.py'
            deploy = dict(input=dict(shape=(64, 96)), rewriters=dict(resize=None, mine=dict(type='Mine')))
        """)
    )
    section = deploy_section(read_config(path), str(path))
    assert section['input']['shape'] == (64, 96)
    assert section['exporter']['type'] == 'TorchScriptExporter'
    config = resolve_deploy_config(
        deploy_section(read_config('mmdeploy_lite::mmseg/segmentation_onnxruntime.py'), ''), plain_dict(section)
    )
    assert 'resize' not in config.rewriters
    assert config.required == {'mine'}


def test_deploy_section_that_is_missing(tmp_path):
    path = tmp_path / 'model.py'
    path.write_text('model = dict(type="X")')
    with pytest.raises(ConfigError, match=r"model\.py has no 'deploy'"):
        deploy_section(read_config(path), str(path))


def test_plain_dict_has_no_default_for_missing_keys(tmp_path):
    path = tmp_path / 'deploy.py'
    path.write_text('deploy = dict(a=dict(b=[dict(c=1)]), t=(dict(d=2),))')
    plain = plain_dict(read_config(path).deploy)
    assert plain == {'a': {'b': [{'c': 1}]}, 't': ({'d': 2},)}
    assert {type(plain), type(plain['a']), type(plain['a']['b'][0]), type(plain['t'][0])} == {dict}


@pytest.mark.parametrize('name', ['detection', 'instance_segmentation'])
def test_shipped_mmdet_configs(name):
    section = deploy_section(read_config(f'mmdeploy_lite::mmdet/{name}_onnxruntime.py'), '')
    config = resolve_deploy_config(plain_dict(section))
    assert {'batched_nms', 'not_in_onnx_export'} <= set(config.rewriters)
    assert ('fcn_mask_paste' in config.rewriters) == (name == 'instance_segmentation')


def test_every_error_is_one_that_the_command_line_prints():
    assert issubclass(ConfigError, DeployError) and issubclass(RewriteError, DeployError)
