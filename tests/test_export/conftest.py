from __future__ import annotations

import importlib.util
import textwrap
from collections.abc import Callable, Sequence
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

import mmdeploy_lite.ops  # noqa: F401  (before mmcv and what imports it)
from mmdeploy_lite.export import ExportedGraph, TorchScriptExporter
from mmdeploy_lite.export.scopes import ScopeRecorder

torch.set_num_threads(1)


@pytest.fixture
def code(tmp_path) -> Callable[..., ModuleType]:
    """Makes a module of source text, in a file, whose lines the tracer's warnings then name."""

    def make(text: str, name: str = 'user_code.py') -> ModuleType:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('import torch\n' + textwrap.dedent(text))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return make


class Function(nn.Module):
    def __init__(self, function: Callable) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor):
        return self.function(*args)


@pytest.fixture
def export() -> Callable[..., ExportedGraph]:
    """Traces a function or module; names inputs ``image``, ``scale_factor``, and outputs as told."""

    def run(
        what: Callable | nn.Module,
        *args: Tensor,
        outputs: Sequence[str] = ('out',),
        dynamic: bool = False,
        recorder: ScopeRecorder | None = None,
    ) -> ExportedGraph:
        module = what if isinstance(what, nn.Module) else Function(what)
        names = ['image', 'scale_factor', 'ori_shape'][: len(args)]
        axes = {'image': {2: 'height', 3: 'width'}} if dynamic else {}
        if recorder is None:
            return TorchScriptExporter().export(module.eval(), args, names, outputs, axes)
        with recorder:
            return TorchScriptExporter().export(module.eval(), args, names, outputs, axes)

    return run


@pytest.fixture
def image() -> Callable[..., Tensor]:
    """Makes a (1, 3, h, w) image."""

    def make(seed: int = 0, height: int = 12, width: int = 16) -> Tensor:
        return torch.rand(1, 3, height, width, generator=torch.Generator().manual_seed(seed)) * 255

    return make
