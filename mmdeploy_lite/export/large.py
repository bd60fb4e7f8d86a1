"""Graphs whose weights are too large for one file: protobuf ends at 2 GB."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import google.protobuf.message
import onnx
from onnx.external_data_helper import load_external_data_for_model

from .graphs import all_weights

LIMIT = 2**31 - 2**26
"""Bytes of weights that are written into the graph's own file: 2 GB less what the graph itself may take."""

_SMALLEST = 1024
"""Smaller tensors stay in the graph: sizes and indices that others are computed from."""


def is_large(model: onnx.ModelProto) -> bool:
    """The weights do not fit into the graph's own file."""
    return sum(len(tensor.raw_data) for tensor in all_weights(model.graph)) > LIMIT


def data_name(model: onnx.ModelProto) -> str:
    """A name that says what is in it: two models' weights can lie in one folder."""
    digest = hashlib.sha256()
    for tensor in all_weights(model.graph):
        digest.update(tensor.raw_data)
    return f'model.{digest.hexdigest()[:16]}.data'


def save(model: onnx.ModelProto, path: Path, external: bool = False) -> None:
    """Write a graph; the same graph always gives the same bytes.

    Args:
        model: is not changed.
        path: of the graph.
        external: put the weights beside it, into a file named after their hash; also done where they are too large.

    Raises:
        OSError: it cannot be written.
    """
    if not external and not is_large(model):
        path.write_bytes(model.SerializeToString(deterministic=True))
        return
    name = data_name(model)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix='.model.') as folder:
        # empties the tensors that it writes
        onnx.save_model(
            model,
            str(Path(folder, path.name)),
            save_as_external_data=True,
            all_tensors_to_one_file=True,
            location=name,
            size_threshold=_SMALLEST,
            convert_attribute=False,
        )
        load_external_data_for_model(model, folder)
        for tensor in all_weights(model.graph):
            tensor.ClearField('data_location')
        data = Path(folder, name)
        if data.is_file():  # of a model with small tensors only, there is none
            shutil.copymode(Path(folder, path.name), data)  # onnx makes it unreadable for other users
            os.replace(data, path.parent / name)
        os.replace(Path(folder, path.name), path)


def data_files(path: Path) -> list[Path]:
    """The files beside a graph that hold its weights."""
    model = onnx.load(str(path), load_external_data=False)
    found = {
        entry.value
        for tensor in all_weights(model.graph)
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == 'location'
    }
    return [path.parent / name for name in sorted(found)]


def drop_unused_data(folder: Path) -> None:
    """Delete weights that no graph in a work dir has any more."""
    data = set(folder.glob('model.*.data'))
    if not data:
        return
    graphs = list(folder.glob('*.onnx'))
    try:
        used = {folder / name.name for path in graphs for name in data_files(path)}
    except (OSError, google.protobuf.message.DecodeError):
        return  # a graph that cannot be read may need any of them
    for path in data - used:
        path.unlink(missing_ok=True)
