"""Train sparse neural networks in one pass, and take them to small files and fast inference."""

from regrow.version import __version__

__all__ = ["__version__"]
