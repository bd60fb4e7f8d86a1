"""OpenVINO, which reads the same file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..registry import BACKENDS
from ..runtime.openvino_session import OpenVINOSession, import_openvino


@BACKENDS.register_module()
class OpenVINOBackend:
    """Runs files with the runtime's own session, so that what is checked is what ships.

    Args:
        threads: of one run; None leaves it to OpenVINO.
        device: of OpenVINO: 'CPU', 'GPU', ... Only CPU is tested.

    Raises:
        BackendError: OpenVINO is not there.
    """

    name = 'OpenVINO'

    def __init__(self, threads: int | None = None, device: str = 'CPU') -> None:
        self.threads = threads
        self.device = device
        # asked for before anything is exported
        self.versions = {'openvino': import_openvino().__version__}

    @property
    def runtime_options(self) -> dict[str, Any]:
        """Of :class:`mmdeploy_lite.runtime.Model`, so that it runs a file as this does."""
        return dict(threads=self.threads, backend='openvino')

    @property
    def winograd(self) -> bool:
        """Whether convolutions are faster by Winograd's algorithm where it is less work."""
        return self.device == 'CPU'

    def load(self, path: str | Path) -> OpenVINOSession:
        """Load a file.

        Raises:
            BackendError: it cannot be loaded.
        """
        return OpenVINOSession(path, self.threads, self.device)
