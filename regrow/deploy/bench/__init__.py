"""Measures models beside the runtimes that people use, on the same weights and in turns."""
