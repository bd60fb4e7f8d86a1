"""The rewriting engine. It knows nothing of the libraries whose functions are replaced."""

from .context import RewriteContext
from .merge import build_rewriters, merge_rewriters, of_exporter
from .rewriter import FunctionRewriter

__all__ = ['FunctionRewriter', 'RewriteContext', 'build_rewriters', 'merge_rewriters', 'of_exporter']
