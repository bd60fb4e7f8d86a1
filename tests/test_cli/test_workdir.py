"""The work dir: what killed runs leave, two runs at once, full disks."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading

import pytest

from mmdeploy_lite.errors import WorkDirError
from mmdeploy_lite.workdir import Staging, disk_errors

from .conftest import PREVIOUS, files, run


def publish(folder, words: str, wait: threading.Barrier | None = None) -> None:
    with Staging(folder) as staging:
        for name in ('report.json', 'model.onnx'):
            staging.folder.joinpath(name).write_text(f'{words} {name}')
        if wait is not None:
            wait.wait()
        staging.publish('model.onnx')


def test_the_next_run_removes_what_a_killed_one_left(tmp_path):
    code = (
        'import os, sys; from pathlib import Path; from mmdeploy_lite.workdir import Staging\n'
        'staging = Staging(Path(sys.argv[1])).__enter__()\n'
        "staging.folder.joinpath('model.onnx').write_text('half of it'); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', code, str(tmp_path)], check=False)
    assert done.returncode == -9
    (left,) = tmp_path.iterdir()
    assert left.name.startswith('.deploy.') and left.joinpath('model.onnx').exists()
    publish(tmp_path, 'next')
    assert set(files(tmp_path)) == {'model.onnx', 'report.json'} and not left.exists()


def test_a_run_that_goes_on_keeps_what_it_has(tmp_path):
    with Staging(tmp_path) as going:
        going.folder.joinpath('model.onnx').write_text('mine')
        publish(tmp_path, 'another')
        assert going.folder.joinpath('model.onnx').read_text() == 'mine'
        going.publish('model.onnx')
    assert tmp_path.joinpath('model.onnx').read_text() == 'mine'
    assert set(files(tmp_path)) == {'model.onnx', 'report.json'}


def test_runs_at_once_do_not_mix(tmp_path):
    for _ in range(20):
        barrier = threading.Barrier(4)
        threads = [threading.Thread(target=publish, args=(tmp_path, str(index), barrier)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = {name: content.decode() for name, content in files(tmp_path).items()}
        winner = found['model.onnx'].split()[0]
        assert found == {name: f'{winner} {name}' for name in ('model.onnx', 'report.json')}


@pytest.mark.parametrize('code', [errno.ENOSPC, errno.EROFS])
def test_a_full_disk_is_our_error(code):
    with pytest.raises(WorkDirError, match='/somewhere/file cannot be written: .*TMPDIR'), disk_errors():
        raise OSError(code, os.strerror(code), '/somewhere/file')
    with pytest.raises(FileNotFoundError), disk_errors():
        raise FileNotFoundError(errno.ENOENT, 'not there')


@pytest.mark.parametrize('place', ['mmdeploy_lite.export.optimize.save', 'mmdeploy_lite.workdir.save'])
def test_full_while_exporting(inputs, work_dir, capsys, monkeypatch, place):
    def full(model, path, *args):
        path.write_bytes(b'half of it')
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(place, full)
    assert run(work_dir, *inputs.segmentor, inputs.image) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert 'cannot be written: No space left on device' in line
    assert files(work_dir) == {'model.onnx': PREVIOUS}
