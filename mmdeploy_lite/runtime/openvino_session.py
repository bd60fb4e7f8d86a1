"""An exported file run by OpenVINO, which reads ONNX itself: nothing is converted."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..errors import BackendError
from .metadata import read_metadata
from .seal import check_seal
from .session import _DTYPES, Session

_TYPES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}


class OpenVINOSession(Session):
    """OpenVINO on one file.

    It computes in float32: left to itself, OpenVINO computes in bfloat16 or float16 where the processor can, which
    gives other answers on other machines.

    Args:
        path: the ``.onnx`` file.
        threads: of one run; None leaves it to OpenVINO.
        device: of OpenVINO.

    Raises:
        BackendError: OpenVINO is not there, no such file, not one that OpenVINO reads, or not made by this package.
    """

    def __init__(self, path: str | Path, threads: int | None = None, device: str = 'CPU') -> None:
        openvino = import_openvino()
        if not Path(path).is_file():
            raise BackendError(f'there is no file {path}')
        if threads is not None and threads < 1:
            raise BackendError(f'{threads} threads cannot run anything; give 1 or more, or leave it to OpenVINO')
        options: dict[str, Any] = {'INFERENCE_PRECISION_HINT': 'f32', 'PERFORMANCE_HINT': 'LATENCY'}
        if threads is not None:
            options['INFERENCE_NUM_THREADS'] = threads
        properties = check_seal(path)  # first: a damaged graph can crash what reads it
        try:
            self.metadata = read_metadata(properties)
        except BackendError as error:
            raise BackendError(f'{path}: {error}') from None
        core = openvino.Core()
        try:
            model = core.read_model(str(path))
        except RuntimeError as error:
            raise BackendError(f'OpenVINO cannot read {path}: {_reason(error)}') from error
        self._inputs = {value.get_any_name(): _describe(value) for value in model.inputs}
        self.input_names = list(self._inputs)
        self.output_names = [value.get_any_name() for value in model.outputs]
        try:
            self._compiled = core.compile_model(model, device, options)
        except RuntimeError as error:
            raise BackendError(f'OpenVINO cannot compile {path} for {device}: {_reason(error)}') from error
        self._idle: queue.SimpleQueue[Any] = queue.SimpleQueue()  # a request serves one thread at a time

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """See :meth:`Session.run`."""
        self.check(feeds)
        try:
            request = self._idle.get_nowait()
        except queue.Empty:
            request = self._compiled.create_infer_request()
        try:
            outputs = list(request.infer(dict(feeds)).values())  # copies
        except RuntimeError as error:
            raise BackendError(f'OpenVINO failed: {_reason(error)}') from error
        self._idle.put(request)
        return dict(zip(self.output_names, outputs, strict=True))


def import_openvino() -> Any:
    """The library.

    Raises:
        BackendError: it is not there.
    """
    try:
        import openvino
    except ImportError as error:
        raise BackendError(
            f"OpenVINO cannot be imported ({error}): pip install openvino, or 'mmdeploy_lite[openvino]'"
        ) from error
    return openvino


def _describe(value: Any) -> SimpleNamespace:
    """An input's type and sizes as ONNX Runtime's are: OpenVINO has no names for sizes."""
    shape = [size.get_length() if size.is_static else '?' for size in value.get_partial_shape()]
    return SimpleNamespace(type=_TYPES.get(value.get_element_type().to_dtype(), ''), shape=shape)


def _reason(error: Exception) -> str:
    """What OpenVINO says, without the lines that name places in its own source; the cause comes last."""
    lines = [line.strip(' -') for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(('Exception from', 'Check ', 'FrontEnd API'))]
    return ' '.join(said or lines)
