"""PyTorch stand-ins for the compiled operators of mmcv, so that mmcv-lite is enough.

mmcv-lite ships the Python side of ``mmcv.ops`` without the compiled extension ``mmcv._ext`` behind it, so
``import mmcv.ops`` fails, and with it most of mmdet and mmseg. Importing this package puts a module of the same name in
its place, but only where no compiled one can be found. Import it before ``mmcv.ops``, ``mmdet`` or ``mmseg``.
"""

from __future__ import annotations

from .extension import install, stand_ins_active

__all__ = ['install', 'stand_ins_active']

install()
