"""Rules for the effect of each operation on channels. Importing this package registers all of them."""

from regrow.shrinking.rules import arithmetic, layers, shape

__all__ = ["arithmetic", "layers", "shape"]
