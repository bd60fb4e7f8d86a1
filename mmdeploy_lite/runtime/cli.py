"""``infer``: a file, images, and a folder for what it answers."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ..errors import BackendError, ImageError, WorkDirError
from .draw import draw
from .model import Model, Result
from .pipeline import Prepared
from .results import PanopticMap, SegMap, class_name


def add_infer_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``infer``."""
    parser.add_argument('model', metavar='MODEL', help='the exported .onnx file')
    parser.add_argument('images', metavar='IMAGE', nargs='+', help='image files')
    parser.add_argument(
        '--out', metavar='DIR', default='results', help='for results.json and pictures (default: results)'
    )
    parser.add_argument(
        '--score-thr',
        metavar='SCORE',
        type=float,
        default=0.3,
        help='objects below it are not drawn; results.json has them all (default: 0.3)',
    )
    parser.add_argument(
        '--threads', metavar='N', type=int, help='for one operator (default: as many as there are cores)'
    )
    parser.add_argument(
        '--providers',
        metavar='NAME',
        nargs='+',
        default=['CPUExecutionProvider'],
        help='of ONNX Runtime, in order of preference (default: CPUExecutionProvider)',
    )
    parser.add_argument(
        '--backend',
        choices=('onnxruntime', 'openvino'),
        default='onnxruntime',
        help='that runs the file (default: onnxruntime)',
    )
    parser.set_defaults(function=infer_command)


def infer_command(args: argparse.Namespace) -> int:
    """``infer``: a progress line, pictures, ``results.json``, and where they are.

    An image that cannot be answered is named and left out; the exit code is then 2.
    """
    model = Model(args.model, args.providers, args.threads, args.backend)
    paths = [Path(path) for path in args.images]
    writer = Writer(Path(args.out), model, args.score_thr)
    start, exit_code = time.perf_counter(), 0
    with Progress(len(paths)) as progress:
        try:
            for path, name in zip(paths, unique_names(paths), strict=True):
                began = time.perf_counter()
                try:
                    prepared = model.prepare(path)
                    result = model.run([prepared])[0]
                except (ImageError, BackendError) as error:
                    progress.fail(str(error))
                    exit_code = error.exit_code
                    continue
                seconds = time.perf_counter() - began
                writer.add(path, name, prepared, result)
                progress.show(f'{path.name}: {in_words(result)}, {seconds * 1e3:.0f} ms')
        except KeyboardInterrupt:
            exit_code = 130
    if exit_code == 130:
        print('interrupted', file=sys.stderr)
    if writer.count:
        writer.save()
        took = time.perf_counter() - start
        pictures = writer.folder / 'pictures'
        print(f'{writer.count} of {len(paths)} images in {took:.1f} s: {writer.json}, pictures in {pictures}')
    return exit_code


def in_words(result: Result) -> str:
    """An answer, short."""
    if isinstance(result, SegMap):
        return f'{len(result.areas)} classes, most of it {next(iter(result.areas))}'
    return '1 object' if len(result) == 1 else f'{len(result)} objects'


def unique_names(paths: Sequence[Path]) -> list[str]:
    """File names without suffix, made different where two are the same."""
    names: list[str] = []
    for path in paths:
        name, number = path.stem, 1
        while name in names:
            name, number = f'{path.stem}_{number}', number + 1
        names.append(name)
    return names


class Progress:
    """A line that says what was done last; in a terminal always the same line.

    Args:
        total: number of images.
    """

    def __init__(self, total: int) -> None:
        self._total, self._count, self._shown = total, 0, 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.clear()

    def show(self, text: str) -> None:
        """One image more is done."""
        self._count += 1
        line = f'[{self._count}/{self._total}] {text}'
        if not sys.stderr.isatty():
            print(line, file=sys.stderr)
            return
        self.clear()
        line = line[: max(_columns() - 1, 20)]  # a longer one would wrap, and the next could not replace it
        print(line, end='', file=sys.stderr, flush=True)
        self._shown = len(line)

    def fail(self, text: str) -> None:
        """One image more cannot be answered; this line stays."""
        self._count += 1
        self.clear()
        print(f'error: {text}', file=sys.stderr)

    def clear(self) -> None:
        """Leave an empty line to others."""
        if self._shown:
            print('\r' + ' ' * self._shown + '\r', end='', file=sys.stderr, flush=True)
            self._shown = 0


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except OSError:
        return 80


class Writer:
    """Pictures at once, and ``results.json`` at the end.

    Args:
        folder: is made with the first picture.
        model: that answers.
        score_thr: for the pictures.
    """

    def __init__(self, folder: Path, model: Model, score_thr: float) -> None:
        self.folder, self.json = folder, folder / 'results.json'
        self._model, self._score_thr = model, score_thr
        self._images: list[dict[str, Any]] = []
        self._results: list[dict[str, Any]] = []

    @property
    def count(self) -> int:
        """Images that were added."""
        return len(self._images)

    def add(self, path: Path, name: str, prepared: Prepared, result: Result) -> None:
        """Write the pictures of one image and keep the rest for :meth:`save`.

        Args:
            path: of the image.
            name: of what is written.
            prepared: the image.
            result: its answer.

        Raises:
            WorkDirError: a picture cannot be written.
        """
        height, width = result.shape
        self._images.append(dict(image=str(path), width=int(width), height=int(height)))
        canvas = prepared.original if self._model.rescale else np.clip(prepared.image, 0, 255).astype(np.uint8)
        self._png(f'pictures/{name}.png', draw(canvas, result, self._model.palette, self._score_thr))
        if isinstance(result, SegMap):
            target = f'maps/{name}.png'
            self._png(target, _small(result.seg_map))
            entry = dict(image=str(path), map=target, areas=result.areas)
            if isinstance(result, PanopticMap):
                entry['numbers'] = f'numbers/{name}.png'
                self._png(entry['numbers'], _small(result.numbers))
                entry['segments'] = [
                    dict(category=category, number=number, area=area) for category, number, area in result.segments
                ]
            self._results.append(entry)
            return
        for index, (box, score, label) in enumerate(zip(result.bboxes, result.scores, result.labels, strict=True)):
            left, top, right, bottom = (float(value) for value in box)
            entry = dict(
                image=str(path),
                category_id=int(label),
                category=class_name(result.classes, int(label)),
                bbox=[left, top, right - left, bottom - top],
                score=float(score),
            )
            if result.masks is not None:
                entry['mask'] = f'masks/{name}/{index:03}.png'
                self._png(entry['mask'], result.masks[index].astype(np.uint8) * 255)
            self._results.append(entry)

    def save(self) -> None:
        """Write ``results.json``, all of it or nothing.

        Raises:
            WorkDirError: it cannot be written.
        """
        content = dict(
            task=self._model.task,
            pixels='original' if self._model.rescale else 'pipeline',
            categories=[dict(id=index, name=name) for index, name in enumerate(self._model.classes)],
            images=self._images,
            results=self._results,
        )
        temporary = self.folder / f'.results.{os.getpid()}.json'
        try:
            temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + '\n', encoding='utf-8')
            os.replace(temporary, self.json)
        except OSError as error:
            raise WorkDirError(f'{self.json} cannot be written: {error.strerror or error}') from error
        finally:
            temporary.unlink(missing_ok=True)

    def _make(self, name: str) -> None:
        try:
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WorkDirError(
                f'{self.folder / name} cannot be made: {error.strerror or error}; choose another folder with --out'
            ) from error

    def _png(self, name: str, picture: np.ndarray) -> None:
        self._make(os.path.dirname(name))
        target = self.folder / name
        try:
            target.write_bytes(cv2.imencode('.png', picture)[1].tobytes())
        except OSError as error:
            raise WorkDirError(f'{target} cannot be written: {error.strerror or error}') from error


def _small(values: np.ndarray) -> np.ndarray:
    """In as few bytes as a PNG can hold them."""
    return values.astype(np.uint8 if values.max(initial=0) < 256 else np.uint16)
