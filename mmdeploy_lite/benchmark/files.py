"""Running an ONNX file, without PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ..errors import BackendError
from ..runtime.session import FileSession


def check_files(path: Path, feeds: Mapping[str, np.ndarray], peers: Sequence[Path] = ()) -> None:
    """Whether there is something to measure, before the minutes that measuring takes.

    Args:
        path: the exported file; it is hashed before anything else reads it.
        feeds: an array per input.
        peers: other ONNX files.

    Raises:
        BackendError: a file is missing or damaged, or the exported one does not take these inputs.
    """
    session = FileSession(path, threads=1)
    try:
        session.check({name: feeds[name] for name in session.input_names if name in feeds})
    except BackendError as error:
        raise BackendError(f'{path} does not take the image as this config prepares it: {error}') from None
    for peer in peers:
        if not peer.is_file():
            raise BackendError(f'there is no file {peer}')
        if not _is_onnx(peer):
            raise BackendError(f'{peer} ({peer.stat().st_size} bytes) is not an ONNX file, or not all of one')


def _is_onnx(path: Path) -> bool:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        return bool(onnx.load(str(path), load_external_data=False).graph.node)
    except DecodeError:
        return False


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
