"""Numerical checks of the convergence theorems with the real implementation.

python -m reproduce.theory.study results/theory   # runs every experiment; writes records (JSON Lines) and figures
"""

from reproduce.theory.bounds import strongly_convex
from reproduce.theory.descent import descend, dpf, sgd
from reproduce.theory.problems import Logistic, Quadratic

__all__ = ["Logistic", "Quadratic", "descend", "dpf", "sgd", "strongly_convex"]
