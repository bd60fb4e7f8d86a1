"""What the tracer froze: unknown lines are named, known ones are still there."""

from __future__ import annotations

import fnmatch
import functools
import importlib.util
from pathlib import Path

import pytest

from mmdeploy_lite.errors import ConfigError
from mmdeploy_lite.export import TracedWarning
from mmdeploy_lite.export.allowed import ALLOWED, AllowedLine, allowed_lines, known_truth, unknown_warnings

FROZEN = {
    'branch': """
        def f(x):
            if x.sum() > 0:  # frozen
                return x + 1
            return x - 1
        """,
    'int': """
        def f(x):
            n = int(x.sum())  # frozen
            return x + n
        """,
    'item': """
        def f(x):
            return x + x.max().item()  # frozen
        """,
    'len': """
        def f(x):
            n = len(x[0, 0])  # frozen
            return x.sum() + torch.zeros(n)
        """,
    'loop': """
        def f(x):
            total = 0
            for row in x[0, 0]:  # frozen
                total = total + row
            return total
        """,
    'numpy': """
        def f(x):
            return x + torch.from_numpy(x.numpy() * 2)  # frozen
        """,
    'bool': """
        def f(x):
            good = x > 0
            if not good.all():  # frozen
                x = x[good]
            return x
        """,
}


@pytest.mark.parametrize('kind', FROZEN)
def test_frozen_value_is_named_with_file_and_line(code, export, image, kind):
    module = code(FROZEN[kind])
    graph = export(module.f, image(), dynamic=True)
    found = unknown_warnings(graph.warnings, ALLOWED)
    lines = Path(module.__file__).read_text().splitlines()
    frozen = [number for number, line in enumerate(lines, 1) if '# frozen' in line]
    assert [(line.split(':')[0], int(line.split(':')[1])) for line in found] == [(module.__file__, *frozen)]
    assert lines[frozen[0] - 1].strip() in found[0]


def test_line_is_named_once(code, export, image):
    module = code("""
        def inner(x):
            return x if x.sum() > 0 else -x

        def f(x):
            return inner(x) + inner(x + 1) + inner(x + 2)
        """)
    assert len(unknown_warnings(export(module.f, image()).warnings, ALLOWED)) == 1


@pytest.mark.parametrize(
    'text',
    [
        """
        def f(x):
            assert x.shape[2] > 2
            return x
        """,
        """
        def f(x):
            assert (
                x.shape[2] > 2 and
                x.sum() > 0 and
                x.shape[3] > 2
            ), 'too small'
            return x
        """,
        """
        def f(x):
            if x.shape[2] > 10_000:
                raise ValueError('too large')
            return x
        """,
    ],
)
def test_assertions_freeze_nothing(code, export, image, text):
    graph = export(code(text).f, image(), dynamic=True)
    assert graph.warnings
    assert unknown_warnings(graph.warnings, ALLOWED) == []


@pytest.mark.parametrize(
    'text',
    [
        """
        def f(x):
            # here one could assert that it is positive,
            if x.sum() > 0:
                return x
            return -x
        """,
        """
        def f(x):
            if x.sum() > 0:
                x = x + 1
            else:
                raise ValueError
            return x
        """,
        """
        def f(x):
            assert x is not None, (
                'given')
            if x.sum() > 0:
                return x
            return -x
        """,
    ],
)
def test_what_only_looks_like_an_assertion(code, export, image, text):
    assert len(unknown_warnings(export(code(text).f, image()).warnings, ALLOWED)) == 1


def test_users_own_line_is_allowed_by_the_config(code, export, image):
    module = code(FROZEN['branch'])
    warnings = export(module.f, image()).warnings
    entry = dict(file='user_code.py', line='x.sum() > 0', reason='always positive')
    assert unknown_warnings(warnings, allowed_lines([entry])) == []
    for other in (dict(entry, file='other.py'), dict(entry, file='code.py'), dict(entry, line='x.sum() < 0')):
        assert len(unknown_warnings(warnings, allowed_lines([other]))) == 1
    assert unknown_warnings(warnings, allowed_lines([dict(entry, file='user_*.py')])) == []
    assert unknown_warnings(warnings, allowed_lines([dict(entry, file='', line='')])) == []


@pytest.mark.parametrize(
    'extra',
    [
        [dict(file='x.py', line='if')],
        [dict(file='x.py', line='if', reason='r', more=1)],
        [dict(file='x.py', line=5, reason='r')],
        [dict(file='x.py', line='if', reason='r', truth='yes')],
        ['x.py'],
        [5],
        'x.py',
        dict(file='x.py', line='if', reason='r', more=1),
        5,
    ],
    ids=str,
)
def test_entry_that_is_wrong(extra):
    with pytest.raises(ConfigError, match=r'audit\.allow has .*; each entry is dict\(file='):
        allowed_lines(extra)


def test_one_entry_without_a_list():
    entry = dict(file='x.py', line='if', reason='r')
    assert allowed_lines(entry)[-1] == allowed_lines([entry])[-1] == AllowedLine(**entry)


def test_which_way_a_branch_goes(code):
    lines = code("""
        def f(x):
            if (
                x.sum() > 0
            ):
                return x
    """).__file__
    entry = dict(file='user_code.py', line='x.sum() > 0', reason='always positive')
    told = allowed_lines([entry, dict(entry, truth=True), dict(entry, truth=False)])
    assert [known_truth(lines, line, told) for line in (4, 5)] == [True, True]  # the first that says
    assert known_truth(lines, 7, told) is None
    assert known_truth(lines, 5, told[:-2]) is None


def test_paths_of_other_systems_and_of_users():
    line = AllowedLine('mmdet/models/dense_heads/rpn_head.py', 'nms_pre', '')
    assert line.allows('C:\\python\\site-packages\\mmdet\\models\\dense_heads\\rpn_head.py', '0 < nms_pre < n')
    assert line.allows('mmdet/models/dense_heads/rpn_head.py', '0 < nms_pre < n')
    assert not line.allows('/home/user/project/my_rpn_head.py', '0 < nms_pre < n')
    assert not line.allows('/home/user/xmmdet/models/dense_heads/rpn_head.py', '0 < nms_pre < n')


@functools.cache
def library_files() -> list[str]:
    """Source files of the libraries that the built-in lines are of."""
    return [
        str(path)
        for name in ('torch', 'mmengine', 'mmcv', 'mmdet', 'mmseg')
        for path in Path(importlib.util.find_spec(name).origin).parent.rglob('*.py')
    ]


@pytest.mark.parametrize(
    'entry', [entry for entry in ALLOWED if entry.file], ids=lambda entry: f'{entry.file}-{entry.line}'
)
def test_built_in_lines_still_exist(entry):
    """A line that a release changed vouches for nothing, or for something else."""
    assert entry.reason
    files = [path for path in library_files() if fnmatch.fnmatchcase(path, f'*/{entry.file}')]
    assert files
    lines = [
        line for path in files for line in Path(path).read_text(encoding='utf8').splitlines() if entry.line in line
    ]
    assert lines


def test_library_file_is_named_by_its_place_in_the_library():
    path = next(path for path in library_files() if path.endswith('mmdet/models/dense_heads/rpn_head.py'))
    (found,) = unknown_warnings([TracedWarning(path, 1, '')], [])
    assert found.startswith('mmdet/models/dense_heads/rpn_head.py:1: ')
