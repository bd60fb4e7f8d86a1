"""Running an ONNX file, without PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from ..errors import BackendError


def file_runner(
    path: Path, feeds: Mapping[str, np.ndarray], threads: int, backend: str = 'onnxruntime'
) -> Callable[[], object]:
    """A function that runs an ONNX file; inputs it does not have are left out.

    Args:
        path: of the file; for OpenVINO, one of this package.
        feeds: an array per input.
        threads: of one run.
        backend: 'onnxruntime' or 'openvino'.

    Raises:
        BackendError: an input that there is no array for.
    """
    if backend == 'openvino':
        from ..runtime.openvino_session import OpenVINOSession

        vino = OpenVINOSession(path, threads)
        arrays = _arrays(path, vino.input_names, feeds)
        return lambda: vino.run(arrays)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # its threads would go on spinning for a while when a run has ended, in the time of what is measured next
    options.add_session_config_entry('session.force_spinning_stop', '1')
    session = onnxruntime.InferenceSession(str(path), options, providers=['CPUExecutionProvider'])
    arrays = _arrays(path, [item.name for item in session.get_inputs()], feeds)
    return lambda: session.run(None, arrays)


def _arrays(path: Path, wanted: list[str], feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    image = feeds['image']
    arrays = {name: feeds.get(name, image if len(wanted) == 1 else None) for name in wanted}
    if missing := [name for name, array in arrays.items() if array is None]:
        raise BackendError(f'{path} takes {", ".join(missing)}, which the image does not give')
    return arrays
