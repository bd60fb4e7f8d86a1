"""Running an ONNX file, without PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from ..errors import BackendError


def file_runner(path: Path, feeds: Mapping[str, np.ndarray], threads: int) -> Callable[[], object]:
    """A function that runs an ONNX file; inputs it does not have are left out.

    Raises:
        BackendError: an input that there is no array for.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # its threads would go on spinning for a while when a run has ended, in the time of what is measured next
    options.add_session_config_entry('session.force_spinning_stop', '1')
    session = onnxruntime.InferenceSession(str(path), options, providers=['CPUExecutionProvider'])
    wanted = [item.name for item in session.get_inputs()]
    image = feeds['image']
    arrays = {name: feeds.get(name, image if len(wanted) == 1 else None) for name in wanted}
    if missing := [name for name, array in arrays.items() if array is None]:
        raise BackendError(f'{path} takes {", ".join(missing)}, which the image does not give')
    return lambda: session.run(None, arrays)
