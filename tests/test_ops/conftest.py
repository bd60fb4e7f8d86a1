"""Imported before the tests of this folder, which import mmcv.ops: with mmcv-lite that needs the stand-ins."""

import mmdeploy_lite.ops  # noqa: F401
