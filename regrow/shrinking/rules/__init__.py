"""What each operation does to channels. Importing this package registers all rules."""

from regrow.shrinking.rules import arithmetic, layers, shape

__all__ = ["arithmetic", "layers", "shape"]
