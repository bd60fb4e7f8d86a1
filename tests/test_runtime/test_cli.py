from __future__ import annotations

import json

import cv2
import numpy as np
import pytest

from mmdeploy_lite import cli
from mmdeploy_lite.runtime import cli as infer
from mmdeploy_lite.runtime.model import Model

from .conftest import CLASSES, write_image


def read(path) -> np.ndarray:
    return cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_UNCHANGED)


@pytest.fixture
def images(tmp_path):
    """Three, two of them of one name; a file of a few nodes sees 2, 4 and 3 objects in them."""
    (tmp_path / 'other').mkdir()
    named = {'a.png': (2, 60, 50), 'other/a.png': (4, 50, 60), 'кошка.png': (3, 50, 60)}
    return [write_image(tmp_path / name, np.full((h, w, 3), value, np.uint8)) for name, (value, h, w) in named.items()]


def run(*args, expect=0) -> None:
    assert cli.run_command('infer', [str(arg) for arg in args]) == expect


def test_detections(make_file, images, tmp_path, capsys):
    out = tmp_path / 'out' / 'deep'
    run(make_file(), *images, '--out', out, '--score-thr', 0.01)
    content = json.loads((out / 'results.json').read_text(encoding='utf-8'))
    assert content['task'] == 'detection' and content['pixels'] == 'original'
    assert content['categories'] == [dict(id=index, name=name) for index, name in enumerate(CLASSES)]
    assert content['images'][0] == dict(image=str(images[0]), width=50, height=60)
    counts = [str(image) for image, count in zip(images, (2, 4, 3), strict=True) for _ in range(count)]
    assert [entry['image'] for entry in content['results']] == counts
    result = Model(make_file())(images[0])
    for index, entry in enumerate(content['results'][:2]):
        assert set(entry) == {'image', 'category_id', 'category', 'bbox', 'score'}
        left, top, width, height = entry['bbox']
        np.testing.assert_allclose([left, top, left + width, top + height], result.bboxes[index], rtol=1e-6)
        assert entry['score'] == float(result.scores[index])  # below --score-thr too
        assert (entry['category_id'], entry['category']) == (result.labels[index], result.names[index])
    assert sorted(path.name for path in (out / 'pictures').iterdir()) == ['a.png', 'a_1.png', 'кошка.png']
    assert read(out / 'pictures' / 'a.png').shape == (60, 50, 3)
    assert (read(out / 'pictures' / 'a_1.png') != 4).any()  # the score is 4 / 255
    assert (read(out / 'pictures' / 'a.png') == 2).all()
    stdout, stderr = capsys.readouterr()
    assert '[3/3] кошка.png: 3 objects' in stderr
    assert '3 of 3 images' in stdout and str(out / 'results.json') in stdout
    assert not list(out.glob('.*'))


def test_masks(make_file, images, tmp_path):
    run(make_file(task='instance_segmentation'), images[0], '--out', tmp_path / 'out')
    content = json.loads((tmp_path / 'out' / 'results.json').read_text(encoding='utf-8'))
    masks = Model(make_file(task='instance_segmentation'))(images[0]).masks
    for entry, mask in zip(content['results'], masks, strict=True):
        np.testing.assert_array_equal(read(tmp_path / 'out' / entry['mask']), mask * np.uint8(255))


@pytest.mark.parametrize('value', [3, 255])
def test_maps(make_file, tmp_path, value):
    image = write_image(tmp_path / 'x.png', np.full((20, 30, 3), value, np.uint8))
    run(make_file(task='segmentation'), image, '--out', tmp_path / 'out')
    [entry] = json.loads((tmp_path / 'out' / 'results.json').read_text(encoding='utf-8'))['results']
    assert entry == dict(image=str(image), map='maps/x.png', areas={'four' if value == 3 else 'class_255': 600})
    label_map = read(tmp_path / 'out' / entry['map'])
    assert label_map.dtype == np.uint8 and label_map.shape == (20, 30) and (label_map == value).all()


def test_without_rescale_the_picture_is_the_pipelines(make_file, images, tmp_path):
    run(make_file(rescale=False), images[0], '--out', tmp_path / 'out')
    content = json.loads((tmp_path / 'out' / 'results.json').read_text(encoding='utf-8'))
    assert content['pixels'] == 'pipeline' and content['images'][0]['height'] == 36
    assert read(tmp_path / 'out' / 'pictures' / 'a.png').shape == (36, 30, 3)


def test_an_image_that_cannot_be_answered_is_named_and_the_others_are_answered(make_file, images, tmp_path, capsys):
    (tmp_path / 'text.png').write_text('no image')
    mixed = [tmp_path / 'gone.png', images[0], tmp_path / 'text.png', images[1]]
    run(make_file(), *mixed, '--out', tmp_path / 'out', expect=2)
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith('error: ')]
    assert len(errors) == 2 and 'gone.png does not exist' in errors[0] and 'text.png is not an image' in errors[1]
    content = json.loads((tmp_path / 'out' / 'results.json').read_text(encoding='utf-8'))
    assert [entry['image'] for entry in content['images']] == [str(images[0]), str(images[1])]


@pytest.mark.parametrize('bad', ['model', 'image', 'foreign', 'truncated'])
def test_bad_input_is_one_line_and_nothing_is_written(make_file, images, tmp_path, bad, capsys):
    model, image = make_file(), images[0]
    if bad == 'model':
        model = tmp_path / 'gone.onnx'
    elif bad == 'image':
        image = tmp_path / 'gone.png'
    else:
        model.write_bytes(model.read_bytes()[:100] if bad == 'truncated' else b'hello')
    run(model, image, '--out', tmp_path / 'out', expect=2)
    stdout, stderr = capsys.readouterr()
    assert stderr.startswith('error: ') and stderr.count('\n') == 1 and not stdout
    assert not (tmp_path / 'out').exists()


def test_a_folder_that_cannot_be_written(make_file, images, tmp_path, capsys):
    (tmp_path / 'file').write_text('')
    run(make_file(), images[0], '--out', tmp_path / 'file', expect=2)
    assert 'choose another folder with --out' in capsys.readouterr().err


def test_interrupted(make_file, images, tmp_path, monkeypatch, capsys):
    prepare, seen = Model.prepare, []

    def once(self, image):
        if seen:
            raise KeyboardInterrupt
        seen.append(image)
        return prepare(self, image)

    monkeypatch.setattr(Model, 'prepare', once)
    run(make_file(), *images, '--out', tmp_path / 'out', expect=130)
    assert len(json.loads((tmp_path / 'out' / 'results.json').read_text(encoding='utf-8'))['images']) == 1
    assert 'interrupted' in capsys.readouterr().err


def test_the_progress_line_of_a_terminal_replaces_itself(monkeypatch, capsys):
    monkeypatch.setattr('sys.stderr.isatty', lambda: True, raising=False)
    with infer.Progress(3) as progress:
        progress.show('first')
        progress.fail('second is bad')
        progress.show('third')
    written = capsys.readouterr().err
    blank = '\r' + ' ' * len('[1/3] first') + '\r'
    assert written == f'[1/3] first{blank}error: second is bad\n[3/3] third{blank}'


def test_commands_that_need_more_are_listed_and_say_what_they_need(monkeypatch, capsys):
    def missing(parser):
        raise ModuleNotFoundError("No module named 'mmengine'", name='mmengine')

    monkeypatch.setattr(cli, 'add_deploy_arguments', missing)
    with pytest.raises(SystemExit) as error:
        cli.main(['deploy', 'a', 'b', 'c'])
    assert error.value.code == 2 and "pip install 'mmdeploy_lite[export]'" in capsys.readouterr().err
    with pytest.raises(SystemExit) as error:
        cli.main(['--help'])
    assert error.value.code == 0 and {'deploy', 'infer', 'benchmark'} <= set(capsys.readouterr().out.split())
