"""Faults while ``deploy`` works: killed, no room, no right to write, two at once, odd paths.

Each deploy is a fork of a process that has imported everything: it starts at once, and can be killed at any moment.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...apis import deploy
from ...cli import main
from ...errors import BackendError
from ...runtime.seal import check_seal
from .runs import small_model

NOBODY = 65534


def fork(work: Callable[[], int | None]) -> int:
    """Run in a child process, whose exit code is what ``work`` returns, 99 for a traceback; its id."""
    number = os.fork()
    if number:
        return number
    code = 99
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        code = work() or 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def wait(number: int) -> int:
    """Exit code of a child; negative for the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


class Works:
    """Two models of one config, and what deploying each of them makes.

    Args:
        folder: for everything.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models = [small_model('detector', folder / name, seed) for name, seed in (('a', 0), ('b', 1))]
        self.run(0, folder / 'first')  # whatever is imported late, is imported now
        self.files: list[bytes] = []
        self.reports: list[dict[str, Any]] = []
        for index in range(2):
            out = folder / f'alone {index}'
            code = wait(fork(lambda index=index, out=out: self.run(index, out)))
            if code:
                raise RuntimeError(f'deploying the model alone ends with exit code {code}')
            self.files.append(out.joinpath('model.onnx').read_bytes())
            self.reports.append(_report(out))
        self.names = sorted(path.name for path in out.iterdir())

    def run(self, index: int, out: Path) -> int:
        """Deploy one of the two."""
        config, checkpoint, image = self.models[index]
        return 0 if deploy(config, checkpoint, image, work_dir=out).equal else 1

    def command(self, index: int, out: Path) -> int:
        """The same by the command line."""
        return main(['deploy', *map(str, self.models[index]), '--work-dir', str(out)])

    def whole(self, out: Path) -> bool:
        """``model.onnx`` is one of the two, to the byte, and those are known to load."""
        path = out / 'model.onnx'
        try:
            check_seal(path)
        except BackendError:
            return False
        return path.read_bytes() in self.files


def _report(out: Path) -> dict[str, Any]:
    """A report without what differs between two runs of one model."""
    report = json.loads(out.joinpath('report.json').read_text(encoding='utf-8'))
    report.pop('stage_times', None)
    report['file'].pop('path')
    return report


def kills(folder: Path, count: int) -> dict[str, Any]:
    """Kill a deploy at random moments, over and over in one work dir that has a good file.

    Returns:
        ``kills``, those that came before the deploy had ended; ``survived`` after how many of them the file was whole;
        ``left``, how many leftovers there were; and ``cleaned``, whether the next run removed them.
    """
    works, out = Works(folder), folder / 'out'
    wait(fork(lambda: works.run(0, out)))
    begin = time.perf_counter()
    wait(fork(lambda: works.run(1, out)))
    took = time.perf_counter() - begin
    moments = random.Random(0)
    survived = killed = left = 0
    while killed < count:
        child = fork(lambda index=killed % 2: works.run(index, out))
        time.sleep(moments.uniform(0, took))
        os.kill(child, signal.SIGKILL)
        if wait(child) != -signal.SIGKILL:
            took *= 0.9  # it was faster than that
            continue
        killed += 1
        survived += works.whole(out)
        left += len(list(out.glob('.deploy.*')))
    code = wait(fork(lambda: works.run(0, out)))
    cleaned = code == 0 and sorted(path.name for path in out.iterdir()) == works.names
    return dict(kills=count, survived=survived, left=left, cleaned=cleaned)


def at_once(folder: Path, rounds: int) -> dict[str, Any]:
    """Two deploys of two models into one work dir at once.

    Returns:
        ``rounds``, and after how many of them the work dir held ``one`` of the two, with nothing of the other.
    """
    works, one = Works(folder), 0
    for index in range(rounds):
        out = folder / f'both {index}'
        children = [fork(lambda which=which, out=out: works.run(which, out)) for which in range(2)]
        codes = [wait(child) for child in children]
        if codes != [0, 0] or not works.whole(out):
            continue
        winner = works.files.index(out.joinpath('model.onnx').read_bytes())
        names = sorted(path.name for path in out.iterdir())
        one += _report(out) == works.reports[winner] and names == works.names
    return dict(rounds=rounds, one=one)


def refusals(folder: Path) -> dict[str, Any]:
    """No room at several sizes, and a folder that cannot be written.

    Returns:
        ``cases``: name to whether the command ended with exit code 2 and left the earlier file as it was.
    """
    works = Works(folder)
    cases: dict[str, bool] = {}

    def case(name: str, prepare: Callable[[Path], Any]) -> None:
        out = folder / f'case {len(cases)}'
        wait(fork(lambda: works.run(0, out)))
        before = {path.name: path.read_bytes() for path in out.iterdir()}
        folder.chmod(0o755)

        def work() -> int:
            prepare(out)
            return works.command(1, out)

        code = wait(fork(work))
        out.chmod(0o755)
        cases[name] = code == 2 and before == {path.name: path.read_bytes() for path in out.iterdir()}

    for size in (0, 1000, 20_000, 60_000):
        case(
            f'no file larger than {size} bytes',
            lambda out, size=size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
        )
    case('a read-only work dir', _read_only)
    return dict(cases=cases)


def _read_only(out: Path) -> None:
    out.chmod(0o555)
    if os.getuid() == 0:  # whom permissions do not stop
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def odd_paths(folder: Path) -> dict[str, Any]:
    """Spaces and letters that are not ASCII in every path, another working directory, no display.

    Returns:
        ``cases``: name to whether the file is that of plain paths, and the runtime answers the image.
    """
    works = Works(folder)
    odd = folder / 'mödel files' / 'モデル 1'
    odd.mkdir(parents=True)
    paths = []
    for source, name in zip(works.models[0], ('köpf config.py', 'gewichte ñ.pth', 'bild 图像.png'), strict=True):
        paths.append(odd / name)
        shutil.copy(source, paths[-1])

    def work() -> int:
        os.chdir(odd.parent)
        for variable in ('DISPLAY', 'WAYLAND_DISPLAY'):
            os.environ.pop(variable, None)
        names = [str(path.relative_to(odd.parent)) for path in paths]
        code = main(['deploy', *names, '--work-dir', 'aus gabe/öäü'])
        return code or main(['infer', 'aus gabe/öäü/model.onnx', names[2], '--out', 'antwort ß'])

    code = wait(fork(work))
    out = odd.parent / 'aus gabe' / 'öäü'
    made = out.joinpath('model.onnx').exists() and out.joinpath('compare_bild 图像.png').exists()
    answered = odd.parent.joinpath('antwort ß', 'results.json').exists()
    return dict(cases={'spaces, other letters, another directory, no display': code == 0 and made and answered})
