"""What goes into the network, for images of a folder."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ..errors import ConfigError, ImageError, UnsupportedError
from ..loading import check_image
from .network import Network, element_types, graph_at

SUFFIXES = {'.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp', '.ppm'}


def image_files(folder: str | Path, count: int) -> list[Path]:
    """Images of a folder and of those in it, spread evenly over all when there are more than ``count``.

    Raises:
        ConfigError: there is no such folder, or no image in it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ConfigError(f'deploy.precision.calibration: there is no folder {folder}')
    paths = sorted(path for path in folder.rglob('*') if path.suffix.lower() in SUFFIXES and path.is_file())
    if not paths:
        raise ConfigError(
            f'deploy.precision.calibration: {folder} has no images ({", ".join(sorted(SUFFIXES))}); name a folder with'
            ' some that look like those the model will see'
        )
    places = np.linspace(0, len(paths) - 1, min(count, len(paths))).round().astype(int)
    return [paths[place] for place in places]


class Exposed:
    """A graph that also answers what goes into its networks.

    Args:
        model: the exact graph; is not changed.
        networks: of it.

    Raises:
        UnsupportedError: a network is in a branch of an ``If``, which not every image takes.
    """

    def __init__(self, model: onnx.ModelProto, networks: list[Network]) -> None:
        import onnxruntime

        types = [element_types(model, network) for network in networks]
        model = copy.deepcopy(model)
        self._networks = networks
        self._given = [value.name for value in model.graph.input]
        self._found: list[dict[str, tuple[str, int]]] = []  # per network: input to (output, loops around it)
        for index, (network, known) in enumerate(zip(networks, types, strict=True)):
            found = {}
            for place, name in enumerate(network.inputs):
                if not network.path and name in self._given:
                    continue
                found[name] = f'network_{index}_input_{place}', len(network.path)
                _expose(model, network, name, found[name][0], known[name])
            self._found.append(found)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        # of two sessions that take turns, the one that waits must not keep the cores busy
        options.add_session_config_entry('session.intra_op.allow_spinning', '0')
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=['CPUExecutionProvider']
        )

    def run(self, feeds: dict[str, np.ndarray]) -> list[list[dict[str, np.ndarray]]]:
        """Run it on one image.

        Returns:
            Per network, its inputs for each time it ran: more than once in a loop.
        """
        wanted = [output for found in self._found for output, _ in found.values()]
        arrays = dict(zip(wanted, self._session.run(wanted, feeds), strict=True))
        runs = []
        for network, found in zip(self._networks, self._found, strict=True):
            values = {name: _turns(arrays[output], loops) for name, (output, loops) in found.items()}
            values |= {name: [feeds[name]] for name in network.inputs if name not in found}
            count = min(map(len, values.values()))
            runs.append([{name: turns[turn] for name, turns in values.items()} for turn in range(count)])
        return runs


def _turns(value: np.ndarray, loops: int) -> list[np.ndarray]:
    count = math.prod(value.shape[:loops])
    # a turn of a number is an array, too: what ONNX Runtime takes
    return [np.asarray(item) for item in value.reshape(count, *value.shape[loops:])]


def _expose(model: onnx.ModelProto, network: Network, name: str, output: str, kind: int) -> None:
    """Let a value within loops be answered: each loop stacks what its turns had."""
    for depth in range(len(network.path), -1, -1):
        graph = graph_at(model, network.path[:depth])
        inner = name if depth == len(network.path) else f'{output}_of_{depth + 1}'
        outer = output if not depth else f'{output}_of_{depth}_inside'
        graph.node.append(helper.make_node('Identity', [inner], [outer]))
        graph.output.append(helper.make_tensor_value_info(outer, kind, None))
        if depth:
            place, _ = network.path[depth - 1]
            loop = graph_at(model, network.path[: depth - 1]).node[place]
            if loop.op_type != 'Loop':
                raise UnsupportedError(f'the network is in the body of {loop.op_type}, where it cannot be calibrated')
            loop.output.append(f'{output}_of_{depth}')


class Reader:
    """Gives ONNX Runtime's calibration one network's inputs after the other; each image is prepared when it is due.

    Args:
        exposed: the graph.
        number: of the network.
        feeds: the graph's inputs, image by image.
    """

    def __init__(self, exposed: Exposed, number: int, feeds: Iterator[dict[str, np.ndarray]]) -> None:
        self._runs = (run for item in feeds for run in exposed.run(item)[number])

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next inputs; None after the last."""
        return next(self._runs, None)


def taken_samples(task: Any, paths: list[Path], takes: Callable[[Any], bool]) -> Iterator[Any]:
    """Images as the test pipeline leaves them, those that the file takes.

    Args:
        task: a :class:`mmdeploy_lite.tasks.BaseTask`.
        paths: image files; what is none is left out.
        takes: whether the file takes such a sample.

    Raises:
        ConfigError: it takes none of them.
    """
    taken = 0
    for path in paths:
        try:
            sample = task.prepare(path.name, check_image(path))
        except ImageError:
            continue
        if takes(sample):
            taken += 1
            yield sample
    if not taken:
        raise ConfigError(
            f'deploy.precision.calibration: of {len(paths)} images the file takes none: they cannot be read, or come'
            ' out of the test pipeline in a size that the file does not take. Export with --shape, after which every'
            ' image comes out the same'
        )
