"""An exported file as a function of arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BackendError
from .metadata import read_metadata
from .seal import check_seal

__all__ = ['FileSession', 'Session', 'open_session', 'read_metadata']

_DTYPES = {
    'tensor(float)': np.float32,
    'tensor(uint8)': np.uint8,
    'tensor(int64)': np.int64,
    'tensor(float16)': np.float16,
    'tensor(bool)': np.bool_,
}


class Session:
    """A file as a function of arrays, whatever runs it; inputs are checked before they run.

    Attributes:
        metadata: see :func:`read_metadata`.
        input_names: in order.
        output_names: in order.
    """

    metadata: dict[str, Any]
    input_names: list[str]
    output_names: list[str]
    _inputs: dict[str, Any]  # name to what has `type`, as ONNX Runtime writes it, and `shape`

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the file.

        Args:
            feeds: an array per input, of its dtype and shape.

        Returns:
            An array per output.

        Raises:
            BackendError: an input is missing, unknown, or of another dtype or size than the file takes.
        """
        raise NotImplementedError

    @property
    def input_shapes(self) -> dict[str, list[int | str]]:
        """Per input, its sizes: numbers where fixed, names where not."""
        return {name: list(item.shape) for name, item in self._inputs.items()}

    @property
    def least_size(self) -> tuple[int, int]:
        """(h, w) in pixels that ``image`` must have at least."""
        height, width = self.metadata.get('shapes', {}).get('least', (1, 1))
        return height, width

    def check(self, feeds: Mapping[str, np.ndarray]) -> None:
        """Whether the file takes these inputs.

        Raises:
            BackendError: see :meth:`run`.
        """
        if set(feeds) != set(self._inputs):
            raise BackendError(f'the file takes {", ".join(self._inputs)}, got {", ".join(feeds) or "nothing"}')
        for name, array in feeds.items():
            item = self._inputs[name]
            dtype = _DTYPES.get(item.type)
            if dtype is not None and array.dtype != dtype:
                raise BackendError(f"input '{name}' must be {np.dtype(dtype).name}, got {array.dtype}")
            fixed = [isinstance(size, int) for size in item.shape]
            if len(array.shape) != len(item.shape) or any(
                known and size != wanted for known, size, wanted in zip(fixed, array.shape, item.shape, strict=True)
            ):
                wanted = ' x '.join(str(size) for size in item.shape)
                given = ' x '.join(str(size) for size in array.shape)
                raise BackendError(
                    f"input '{name}' must be {wanted}, got {given}; "
                    + self.metadata.get('shapes', {}).get('reason', 'export again with --shape for another size')
                )
            if name == 'image' and any(
                got < least for got, least in zip(array.shape[-2:], self.least_size, strict=True)
            ):
                least = ' x '.join(map(str, self.least_size))
                raise BackendError(
                    f"input 'image' must be {least} or larger in height and width, the size of its windows; got"
                    f' {array.shape[-2]} x {array.shape[-1]}'
                )


def open_session(
    path: str | Path,
    providers: Sequence[str] = ('CPUExecutionProvider',),
    threads: int | None = None,
    backend: str = 'onnxruntime',
) -> Session:
    """Load a file with the library that is to run it.

    Args:
        path: the ``.onnx`` file.
        providers: of ONNX Runtime.
        threads: see the sessions.
        backend: 'onnxruntime' or 'openvino'.

    Raises:
        BackendError: there is no such backend, or it cannot load the file.
    """
    if backend == 'openvino':
        from .openvino_session import OpenVINOSession

        return OpenVINOSession(path, threads)
    if backend != 'onnxruntime':
        raise BackendError(f"there is no backend '{backend}'; use 'onnxruntime' or 'openvino'")
    return FileSession(path, providers, threads)


class FileSession(Session):
    """ONNX Runtime on one file.

    Args:
        path: the ``.onnx`` file.
        providers: of ONNX Runtime, in order of preference.
        threads: for one operator; None leaves it to ONNX Runtime.
        quiet: no warnings from ONNX Runtime.

    Raises:
        BackendError: no such file, not an ONNX file, not made by this package, not as it was written (see
            :mod:`mmdeploy_lite.runtime.seal`), or a provider that is not there.
    """

    def __init__(
        self,
        path: str | Path,
        providers: Sequence[str] = ('CPUExecutionProvider',),
        threads: int | None = None,
        quiet: bool = True,
    ) -> None:
        try:
            import onnxruntime
        except ModuleNotFoundError as error:
            raise BackendError(
                "onnxruntime is not installed: pip install onnxruntime, or 'mmdeploy_lite[runtime]'"
            ) from error
        if not Path(path).is_file():
            raise BackendError(f'there is no file {path}')
        missing = [name for name in providers if name not in onnxruntime.get_available_providers()]
        if missing:
            available = ', '.join(onnxruntime.get_available_providers())
            raise BackendError(f'this onnxruntime has no {", ".join(missing)}; it has {available}')
        options = onnxruntime.SessionOptions()
        if threads is not None and threads < 1:
            raise BackendError(f'{threads} threads cannot run anything; give 1 or more, or leave it to ONNX Runtime')
        if quiet:
            options.log_severity_level = 3
        if threads is not None:
            options.intra_op_num_threads = threads
        properties = check_seal(path)  # first: a damaged graph can crash what reads it
        try:
            self.metadata = read_metadata(properties)
        except BackendError as error:
            raise BackendError(f'{path}: {error}') from None
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=list(providers))
        except Exception as error:  # onnxruntime's errors have no common base that older releases export
            raise BackendError(f'ONNX Runtime cannot load {path}: {str(error).splitlines()[0]}') from error
        self._inputs = {item.name: item for item in self._session.get_inputs()}
        self.input_names = list(self._inputs)
        self.output_names = [item.name for item in self._session.get_outputs()]

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """See :meth:`Session.run`."""
        self.check(feeds)
        try:
            outputs = self._session.run(None, dict(feeds))
        except Exception as error:
            raise BackendError(f'ONNX Runtime failed: {str(error).splitlines()[0]}') from error
        return dict(zip(self.output_names, outputs, strict=True))
