"""What ``mmcv.utils.collect_env`` asks the extension about itself."""

from __future__ import annotations

__all__ = ['get_compiler_version', 'get_compiling_cuda_version']


def get_compiler_version() -> str:
    """The compiler of the extension: there is none."""
    return 'n/a'


def get_compiling_cuda_version() -> str:
    """The CUDA version of the extension: there is none."""
    return 'n/a'
