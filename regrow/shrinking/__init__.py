"""Removes pruned filters from a model; public as `regrow.shrink`."""
