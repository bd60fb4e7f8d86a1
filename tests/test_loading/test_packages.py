"""``mmdeploy_lite::...`` resolves in a source tree and in what an install puts elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from mmengine.config import Config

from mmdeploy_lite.loading import read_config

ROOT = Path(__file__).resolve().parents[2]
NAME = 'mmdeploy_lite::mmseg/segmentation_onnxruntime_slide.py'


@pytest.mark.parametrize('read', [read_config, Config.fromfile], ids=['read_config', 'mmengine'])
def test_a_base_in_the_source_tree(read, tmp_path):
    path = tmp_path / 'deploy.py'
    path.write_text(f"_base_ = '{NAME}'\n")
    found = read(path)
    assert found.to_dict() == read_config(NAME).to_dict() and len(found) > 0
    assert '_scope_' not in str(found)


def test_a_base_beside_one_of_a_library(tmp_path):
    path = tmp_path / 'config.py'
    path.write_text(f"_base_ = ['mmseg::_base_/models/fcn_r50-d8.py', '{NAME}']\n")
    found = read_config(path)
    assert found.model.type == 'EncoderDecoder' and found.model._scope_ == 'mmseg'


def test_a_name_is_found_without_pkg_resources(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'pkg_resources', None)
    path = tmp_path / 'config.py'
    path.write_text("_base_ = 'mmdet::_base_/models/retinanet_r50_fpn.py'\n")
    assert read_config(path).model.type == 'RetinaNet'


@pytest.fixture(scope='module')
def built(tmp_path_factory) -> Path:
    """The directory that goes into the wheel."""
    target = tmp_path_factory.mktemp('build')
    command = ['setup.py', '-q', 'build', '--build-base', target / 'base', '--build-lib', target / 'lib']
    # the egg-info that setuptools writes while it looks for package data stays out of the source tree as well
    command += ['egg_info', '--egg-base', target]
    subprocess.run([sys.executable, *map(str, command)], cwd=ROOT, check=True, capture_output=True)
    return target / 'lib'


def test_an_install_carries_configs_and_tools(built):
    mim = built / 'mmdeploy_lite' / '.mim'
    for folder in ('configs', 'tools'):
        expected = {path.relative_to(ROOT) for path in (ROOT / folder).rglob('*.py')}
        assert {path.relative_to(mim) for path in (mim / folder).rglob('*.py')} == expected
    assert (mim / 'model-index.yml').is_file()
    assert not (ROOT / 'mmdeploy_lite' / '.mim').exists()


def test_a_base_in_an_install(built, tmp_path):
    (tmp_path / 'deploy.py').write_text(f"_base_ = '{NAME}'\n")
    code = (
        'import mmdeploy_lite, mmdeploy_lite.loading as loading\n'
        "cfg = loading.read_config('deploy.py')\n"
        f"print(mmdeploy_lite.__file__, loading.read_config('{NAME}').filename, sorted(cfg), sep='\\n')\n"
    )
    run = subprocess.run(
        [sys.executable, '-c', code],
        cwd=tmp_path,
        env={'PYTHONPATH': str(built), 'OMP_NUM_THREADS': '1'},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    package, filename, keys = run.stdout.splitlines()[-3:]
    assert Path(package).is_relative_to(built) and Path(filename).is_relative_to(built)
    assert keys == str(sorted(read_config(NAME)))
