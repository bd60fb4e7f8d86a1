"""A quarter of the weights' size: the network's layers in eight bits."""

from __future__ import annotations

import contextlib
import logging
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ..errors import ConfigError, UnsupportedError
from ..export.graphs import reads, set_nodes
from ..registry import PRECISIONS
from .calibration import Exposed, Reader, image_files, taken_samples
from .network import Network, cut, find_networks, last_layers, put_back
from .scheme import Scheme

OPERATORS = ('Conv', 'Gemm', 'MatMul')
METHODS = ('minmax', 'moving_average', 'entropy', 'percentile')


@PRECISIONS.register_module(name='int8')
class INT8(Scheme):
    """The network's layers in eight bits, with ranges measured on images: ONNX Runtime's static quantization, as pairs
    of ``QuantizeLinear`` and ``DequantizeLinear`` that every runtime reads.

    Weights have a scale for each channel. Activations are uint8 and weights int8, which is what x86 processors multiply
    fast; signed activations took more than twice the time on one.

    Args:
        calibration: folder of images like those the model will see; those of its training, not of its test.
        num_images: of the folder, spread evenly over it.
        operators: that are quantized.
        keep_last: the layers whose results leave the network stay in float32: scores and boxes are computed from them,
            and they are few.
        exclude: regular expressions for the names of layers that stay in float32, as ``backbone/stem``.
        method: how ranges are found: 'minmax', 'moving_average', 'entropy' or 'percentile'. The last two keep the
            activations of all images in memory.
        per_channel: a scale for each channel of the weights.
        signed_activations: int8 instead of uint8, for ARM processors and GPUs.
        reduce_range: 7 bits for weights, for x86 processors without VNNI, where sums of 8 bits overflow.
        **limits: see :class:`Scheme`.

    Raises:
        ConfigError: no calibration folder, or a value that is none of these.
    """

    name = 'int8'

    def __init__(
        self,
        calibration: str | Path | None = None,
        num_images: int = 100,
        operators: Sequence[str] = OPERATORS,
        keep_last: bool = True,
        exclude: Sequence[str] = (),
        method: str = 'minmax',
        per_channel: bool = True,
        signed_activations: bool = False,
        reduce_range: bool = False,
        **limits: Any,
    ) -> None:
        super().__init__(**limits)
        if calibration is None:
            raise ConfigError(
                'int8 needs images to measure the ranges of activations on: deploy.precision.calibration=FOLDER, with'
                ' images like those the model will see'
            )
        if not isinstance(num_images, int) or isinstance(num_images, bool) or num_images < 1:
            raise ConfigError(f'deploy.precision.num_images is {num_images!r}; it must be an integer of 1 or more')
        if method not in METHODS:
            raise ConfigError(f'deploy.precision.method is {method!r}; it must be one of {", ".join(METHODS)}')
        patterns = [exclude] if isinstance(exclude, str) else list(exclude)
        try:
            self.exclude = [re.compile(pattern) for pattern in patterns]
        except (re.error, TypeError) as error:
            raise ConfigError(f'deploy.precision.exclude: {error} in {patterns!r}') from None
        self.operators = (operators,) if isinstance(operators, str) else tuple(operators)
        self.files = image_files(calibration, num_images)
        self.keep_last = keep_last
        self.method = method
        self.per_channel = per_channel
        self.signed_activations = signed_activations
        self.reduce_range = reduce_range

    def convert(self, model: onnx.ModelProto, task: Any, takes: Any, steps: Any) -> tuple[onnx.ModelProto, dict]:
        """See :meth:`Scheme.convert`."""
        networks = find_networks(model)
        exposed = Exposed(model, networks)
        layers = [self._layers(network) for network in networks]
        if not any(layers):
            raise UnsupportedError(
                f'nothing is left to quantize: no {" or ".join(self.operators)} with weights that'
                ' deploy.precision.exclude and keep_last leave'
            )
        used: set[str] = set()

        def feeds(step: Any) -> Iterator[dict[str, np.ndarray]]:
            for sample in taken_samples(task, self.files, takes):
                used.add(sample.name)
                yield task.feeds([sample] * task.batch_size)
                step()

        converted = []
        for number, network in enumerate(networks):
            if not layers[number]:
                converted.append(cut(model, network))
                continue
            with steps(len(self.files)) as step:
                converted.append(
                    self._quantize(cut(model, network), layers[number], Reader(exposed, number, feeds(step)))
                )
        total = sum(len(network.layers) for network in networks)
        put_back(model, networks, converted)
        for network in networks:
            keep_from_bodies(network.graph)
        return model, dict(
            layers=sum(map(len, layers)), of_layers=total, calibration_images=len(used), method=self.method
        )

    def _layers(self, network: Network) -> list[str]:
        """Names of those to be quantized."""
        last = last_layers(network) if self.keep_last else set()
        return [
            node.name
            for node in network.layers
            if node.op_type in self.operators
            and node.output[0] not in last
            and not any(pattern.search(node.name) for pattern in self.exclude)
        ]

    def _quantize(self, model: onnx.ModelProto, layers: list[str], reader: Reader) -> onnx.ModelProto:
        from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

        kinds = dict(entropy=CalibrationMethod.Entropy, percentile=CalibrationMethod.Percentile)
        with tempfile.TemporaryDirectory() as folder, _quiet():
            source, target = Path(folder, 'exact.onnx'), Path(folder, 'quantized.onnx')
            onnx.save(model, str(source))
            quantize_static(
                str(source),
                str(target),
                reader,
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=list(self.operators),
                nodes_to_quantize=layers,
                per_channel=self.per_channel,
                reduce_range=self.reduce_range,
                activation_type=QuantType.QInt8 if self.signed_activations else QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                calibrate_method=kinds.get(self.method, CalibrationMethod.MinMax),
                extra_options=dict(CalibMovingAverage=True) if self.method == 'moving_average' else {},
            )
            return onnx.load(str(target))


_MOVED_PAST = ('Reshape', 'Transpose', 'Squeeze', 'Unsqueeze', 'Slice', 'MaxPool')


def keep_from_bodies(graph: onnx.GraphProto) -> None:
    """Put a ``Max`` of one value between a DequantizeLinear and what bodies of branches and loops read, in place.

    ONNX Runtime (1.32) moves a DequantizeLinear past these operators, to all who read them, and aborts the process
    where it is a body that does.
    """
    producers = {name: node for node in graph.node for name in node.output}
    read = {name for node in graph.node for name in reads(node) - set(node.input)}
    nodes = []
    for node in graph.node:
        nodes.append(node)
        before: onnx.NodeProto | None = node
        while before is not None and before.op_type in _MOVED_PAST:
            before = producers.get(before.input[0])
        if before is node or before is None or before.op_type != 'DequantizeLinear' or not read & {*node.output}:
            continue
        name = node.output[0]
        node.output[0] = f'{name}_moved'
        nodes.append(helper.make_node('Max', [node.output[0]], [name], name=f'{name}_kept'))
    set_nodes(graph, nodes)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """ONNX Runtime asks for a preparation that a finished file has had."""
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
