"""Stock ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..registry import BACKENDS
from ..runtime.session import FileSession


@BACKENDS.register_module()
class ONNXRuntimeBackend:
    """Runs files with the runtime's own session, so that what is checked is what ships.

    Args:
        providers: of ONNX Runtime, in order of preference.
        threads: for one operator; None leaves it to ONNX Runtime.
    """

    name = 'ONNX Runtime'

    def __init__(self, providers: Sequence[str] = ('CPUExecutionProvider',), threads: int | None = None) -> None:
        self.providers = tuple(providers)
        self.threads = threads

    @property
    def runtime_options(self) -> dict[str, Any]:
        """Of :class:`mmdeploy_lite.runtime.Model`, so that it runs a file as this does."""
        return dict(providers=self.providers, threads=self.threads)

    @property
    def winograd(self) -> bool:
        """Whether convolutions are faster by Winograd's algorithm where it is less work: cuDNN has its own."""
        return self.providers[:1] == ('CPUExecutionProvider',)

    def load(self, path: str | Path) -> FileSession:
        """Load a file.

        Raises:
            BackendError: it cannot be loaded.
        """
        return FileSession(path, self.providers, self.threads)
