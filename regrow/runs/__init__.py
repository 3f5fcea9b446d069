"""Recipes, run folders and their results. Nothing here imports torch."""
