"""Keeps a model sparse while an optimizer trains it."""
