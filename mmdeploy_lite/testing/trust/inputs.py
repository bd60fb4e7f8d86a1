"""Bad files and images: each is answered clearly, by an error of ours or a right answer.

In batches, each in a process of its own, so that a crash or a hang is counted and named.
"""

from __future__ import annotations

import json
import multiprocessing
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ...errors import BackendError, DeployError, ImageError, UnsupportedError
from ...prepare import prepare
from ...runtime import Model, read_metadata, seal
from ...runtime.metadata import METADATA_KEY
from ..images import scene
from .runs import same, small_model
from .work import fork, wait

BATCH, SECONDS = 50, 120


class Inputs:
    """A good file and what is made of it.

    Args:
        kind: of :data:`mmdeploy_lite.testing.trust.runs.SMALL`.
        folder: for files.
    """

    def __init__(self, kind: str, folder: Path) -> None:
        from ...apis import deploy

        self.paths = small_model(kind, folder)
        self.folder = folder
        # in a child: no session of ONNX Runtime lives in the process that is forked
        if code := wait(fork(lambda: 0 if deploy(*self.paths, work_dir=folder / 'out').equal else 1)):
            raise RuntimeError(f'deploying the {kind} ends with exit code {code}')
        self.good = (folder / 'out' / 'model.onnx').read_bytes()
        self.task = prepare(*self.paths[:2], work_dir=folder).task
        self.picture = scene(0, 64, 96)
        self._answer: Any = None
        self._model: Model | None = None

    @property
    def model(self) -> Model:
        """The good file."""
        if self._model is None:
            self._model = Model(self.folder / 'out' / 'model.onnx', threads=1)
        return self._model

    def file(self, content: bytes) -> str:
        """Load a file and, where that is possible, run it."""
        path = self.folder / f'bad {multiprocessing.current_process().pid}.onnx'
        path.write_bytes(content)
        try:
            answer = Model(path, threads=1)(self.picture)
        except BackendError:
            return 'our error'
        if self._answer is None:
            self._answer = self.model(self.picture)
        return 'right answer' if same(answer, self._answer) else 'WRONG ANSWER'

    def metadata(self, text: str) -> str:
        """Read a description; where it is one, what is built from it must be ours or fail as ours."""
        try:
            found = read_metadata({METADATA_KEY: text})
        except BackendError:
            return 'our error'
        json.dumps(found)
        return 'right answer'

    def described(self, changes: dict[str, Any]) -> str:
        """A sealed file whose description was changed on purpose."""
        import onnx

        model = onnx.load_from_string(self.good)
        del model.metadata_props[1:]
        entry = model.metadata_props[0]
        entry.value = json.dumps({**json.loads(entry.value), **changes})
        path = self.folder / f'described {multiprocessing.current_process().pid}.onnx'
        path.write_bytes(model.SerializeToString(deterministic=True))
        seal(path)
        try:
            Model(path, threads=1)(self.picture)
        except (BackendError, UnsupportedError, ImageError):
            return 'our error'
        return 'right answer'  # of what it says it is

    def image(self, image: Any) -> str:
        """An array or a file: an error of ours, or what PyTorch answers."""
        try:
            answer = self.model(image)
        except ImageError:
            return 'our error'
        from ...check.runtime_check import _answer
        from ...loading import check_image

        pixels = check_image(image) if isinstance(image, Path) else image
        sample = self.task.prepare('image', pixels)
        reference, evidence = self.task.reference(sample)
        compared = self.task.compare(sample, reference, _answer(self.task, answer), self.task.tolerance, evidence)
        return 'WRONG ANSWER' if compared.verdict == 'unequal' else 'right answer'


def bad_file(inputs: Inputs, rng: random.Random) -> Callable[[], str]:
    """The good file truncated, with flipped bits, with a part of it gone; or something else entirely."""
    content, size = bytearray(inputs.good), len(inputs.good)
    kind = rng.choice(['truncated', 'flipped', 'flipped', 'zeros', 'cut', 'doubled', 'foreign'])
    at, length = rng.randrange(size), rng.randrange(1, 2000)
    if kind == 'truncated':
        content = content[:at]
    elif kind == 'flipped':
        for _ in range(rng.choice([1, 1, 1, 8])):
            content[rng.choice([rng.randrange(size), size - 1 - rng.randrange(min(3000, size))])] ^= 1 << rng.randrange(
                8
            )
    elif kind == 'zeros':
        content[at : at + length] = bytes(len(content[at : at + length]))
        if content == inputs.good:
            content[at] ^= 1
    elif kind == 'cut':
        del content[at : at + length]
    elif kind == 'doubled':
        content[at:at] = content[at : at + length]
    else:
        content = bytearray(rng.choice(_FOREIGN)(rng))
    return lambda: inputs.file(bytes(content))


def _foreign_onnx(rng: random.Random) -> bytes:
    import onnx

    values = [onnx.helper.make_tensor_value_info(name, 1, ['n']) for name in 'xy']
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(rng.choice(['Relu', 'Bad']), ['x'], ['y'])], 'g', *[[v] for v in values]
    )
    return onnx.helper.make_model(graph).SerializeToString()


_FOREIGN: list[Callable[[random.Random], bytes]] = [
    lambda rng: b'',
    lambda rng: rng.randbytes(rng.randrange(1, 5000)),
    lambda rng: cv2.imencode('.png', scene(rng.randrange(100), 20, 20))[1].tobytes(),
    lambda rng: json.dumps({METADATA_KEY: rng.random()}).encode() * rng.randrange(1, 50),
    lambda rng: b'PK\x03\x04' + rng.randbytes(300),
    _foreign_onnx,
]
_VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 3, 2**31, 2**63, 10**400, 1e308, -0.5, '', 'mmdet', 'x' * 5000, 'float32', 'ü\u0000',
    [], {}, [1], [1, 2], [[1, 2, 3]], [None], ['a', 'b'], {'type': 'Resize'},
    [{'type': 'LoadImageFromFile'}], {'a': {}},
    [{'type': 'LoadImageFromFile'}, {'type': 'Resize', 'scale': [0, 0]}, {'type': 'PackDetInputs'}],
    [{'type': 'LoadImageFromFile'}, {'type': 'Resize', 'scale': 'wide'}, {'type': 'PackDetInputs'}],
    [{'type': 'LoadImageFromFile'}, {'type': 'Resize', 'scale': [-5, 7], 'keep_ratio': 1}, {'type': 'PackSegInputs'}],
    [{'type': 'LoadImageFromFile'}, {'type': 'Pad', 'size': [5, 5]}, {'type': 'PackDetInputs'}],
    [{'type': 'LoadImageFromFile'}, {'type': 'Pad', 'size_divisor': 0}, {'type': 'PackDetInputs'}],
    [{'type': 'LoadImageFromFile'}, {'type': 'Pad', 'size': [2, None], 'pad_val': 'x'}, {'type': 'PackDetInputs'}],
]  # fmt: skip


def _json(rng: random.Random, depth: int = 0) -> Any:
    if depth > 3 or rng.random() < 0.5:
        return rng.choice(_VALUES)
    if rng.random() < 0.5:
        return [_json(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {
        rng.choice(['type', 'version', 'shapes', 'least', 'size', 'scale', 'x']): _json(rng, depth + 1)
        for _ in range(3)
    }


def bad_metadata(inputs: Inputs, rng: random.Random) -> Callable[[], str]:
    """Descriptions of other types, other versions, cut off; and good files with one entry changed."""
    good = json.loads(_metadata_of(inputs))
    key = rng.choice([*good, 'version', 'shapes', 'pipeline', 'preprocess'])
    kind = rng.choice(['sealed', 'sealed', 'text', 'json', 'deep', 'entry'])
    if kind == 'sealed':
        value = _json(rng)
        if key == 'preprocess' and rng.random() < 0.5:
            value = {**good[key], rng.choice(list(good[key])): _json(rng)}
            return lambda: inputs.described({'input': 'preprocessed', key: value})
        return lambda: inputs.described({key: value})
    text = json.dumps(good)
    if kind == 'text':
        text = text[: rng.randrange(len(text))] + rng.choice(['', '\x00', '}', '🙂', '"'])
    elif kind == 'json':
        text = json.dumps(_json(rng))
    elif kind == 'deep':
        text = rng.choice(['[', '{"a":']) * rng.choice([10, 100_000])
    else:
        text = json.dumps({**good, key: _json(rng)})
    return lambda: inputs.metadata(text)


def _metadata_of(inputs: Inputs) -> str:
    from ...runtime.seal import check_seal

    return check_seal(inputs.folder / 'out' / 'model.onnx')[METADATA_KEY]


def bad_image(inputs: Inputs, rng: random.Random) -> Callable[[], str]:
    """Arrays and files of every kind, damaged ones among them."""
    random_numbers = np.random.default_rng(rng.randrange(2**32))
    sizes = [
        (0, 5),
        (5, 0),
        (1, 1),
        (1, 10_000),
        (10_000, 1),
        (2, 2),
        (1, 50),
        (64, 96),
        (33, 77),
        (200, 150),
        (7, 300),
    ]
    height, width = rng.choice(sizes)
    picture = (
        scene(rng.randrange(1000), height, width)
        if min(height, width) > 1
        else random_numbers.integers(0, 256, (height, width, 3), dtype=np.uint8)
    )
    kind = rng.choice(['array', 'type', 'channels', 'png', 'jpg', 'damaged', 'damaged', 'other'])
    if kind == 'array':
        return lambda: inputs.image(picture)
    if kind == 'type':
        value = picture.astype(rng.choice([np.float32, np.float64, np.uint16, np.int64, bool]))
        if value.dtype.kind == 'f' and value.size:
            value.flat[0] = rng.choice([np.nan, np.inf, -1.0])
        return lambda: inputs.image(value)
    if kind == 'channels':
        value = rng.choice([picture[..., 0], picture[..., :1], np.dstack([picture, picture[..., :1]]), picture[None]])
        return lambda: inputs.image(value)
    if kind == 'other':
        value = rng.choice([None, 5, {}, inputs.folder, inputs.folder / 'gone.png', 'gone.png', [[1, 2], [3, 4]]])
        return lambda: inputs.image(value if not isinstance(value, list) else np.array(value))
    if not picture.size:
        picture = scene(1, 5, 5)
    form = rng.choice(['bgr', 'gray', 'rgba', '16 bit'])
    if form == 'gray':
        picture = picture[..., 0]
    elif form == 'rgba' and kind != 'jpg':
        picture = np.dstack([picture, picture[..., 0]])
    elif form == '16 bit' and kind != 'jpg':
        picture = picture.astype(np.uint16) * 257
    suffix = kind if kind in ('png', 'jpg') else 'png'
    content = bytearray(cv2.imencode(f'.{suffix}', picture)[1].tobytes())
    if kind == 'damaged':
        if rng.random() < 0.5:
            content = content[: rng.randrange(len(content))]
        else:
            for _ in range(rng.choice([1, 5, 50])):
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)

    def written() -> str:
        path = inputs.folder / f'bild {multiprocessing.current_process().pid}.{suffix}'
        path.write_bytes(content)
        return inputs.image(path)

    return written


KINDS = {'files': bad_file, 'metadata': bad_metadata, 'images': bad_image}


def fuzz(kind: str, what: str, folder: Path, count: int) -> dict[str, Any]:
    """Try bad inputs.

    Args:
        kind: of the model, see :class:`Inputs`.
        what: of :data:`KINDS`.
        folder: for files.
        count: how many.

    Returns:
        ``tried``; ``answers``, how many there were of each kind, crashes and hangs among them; ``unclear``, the first
        of those that were neither an error of ours nor a right answer.
    """
    inputs = Inputs(kind, folder)
    context = multiprocessing.get_context('fork')
    answers: Counter[str] = Counter()
    unclear: list[str] = []
    for start in range(0, count, BATCH):
        seeds = range(start, min(start + BATCH, count))
        receive, send = context.Pipe(duplex=False)
        child = context.Process(target=_batch, args=(inputs, what, seeds, send))
        child.start()
        send.close()
        seen = []
        while receive.poll(SECONDS):
            try:
                seen.append(receive.recv())
            except EOFError:
                break
        else:
            child.kill()
        child.join()
        for seed, word in zip(seeds, seen, strict=False):
            answers[word.partition(':')[0]] += 1
            if word not in ('our error', 'right answer'):
                unclear.append(f'{kind}, {what}, seed {seed}: {word}')
        if len(seen) < len(seeds):
            word = 'hang' if child.exitcode == -9 else f'crash with exit code {child.exitcode}'
            answers[word] += len(seeds) - len(seen)
            unclear.append(f'{kind}, {what}, seed {seeds[len(seen)]}: {word}')
    return dict(kind=kind, what=what, tried=count, answers=dict(answers), unclear=unclear[:20])


def _batch(inputs: Inputs, what: str, seeds: range, send: Any) -> None:
    for seed in seeds:
        try:
            word = KINDS[what](inputs, random.Random(f'{what} {seed}'))()
        except DeployError as error:
            word = f'another error of ours: {type(error).__name__}: {error}'
        except Exception as error:
            word = f'{type(error).__name__}: {error}'
        send.send(word)
    send.close()
