"""What a user can get wrong, or ask for in vain.

Each error's message says what happened, with the value, and what to do next. The command line prints it as one line
and exits with ``exit_code``; it never shows a traceback for these.
"""

from __future__ import annotations

import errno

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
"""Numbers of an ``OSError`` that a full disk, or one that can only be read, causes."""


class DeployError(Exception):
    """Base of all errors that a user's input or wish can cause."""

    exit_code = 2


class ConfigError(DeployError):
    """A model or deploy config that cannot be read, has no model, or names something unknown."""


class CheckpointError(DeployError):
    """A checkpoint that is missing, unreadable, unsafe to unpickle, or does not fit the model."""


class ImageError(DeployError):
    """An image that is missing or is not an image."""


class WorkDirError(DeployError):
    """A work directory that cannot be written."""


class UnsupportedError(DeployError):
    """The model or its test config asks for something that cannot be exported exactly; refused before tracing."""


class RewriteError(DeployError):
    """A rewriter that cannot be built or whose target does not exist."""


class NothingDetectedError(DeployError):
    """No box reached an NMS call while tracing, so the NMS could not be recorded: the empty-bbox guard."""


class ExportError(DeployError):
    """Tracing or converting the model failed."""


class AuditError(DeployError):
    """The exported graph is not what was traced: a frozen branch, a lost input or module, a foreign operator."""


class BackendError(DeployError):
    """The backend cannot load or run the file, or got inputs that the file does not take."""
