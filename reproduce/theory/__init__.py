"""Numerical checks of the convergence theorems with the real implementation.

python -m reproduce.theory.study results/theory   # runs every experiment; writes records (JSON Lines) and figures
"""

from reproduce.theory.bounds import BoundComparison, dense_iterate, non_convex, one_shot, strongly_convex
from reproduce.theory.descent import Trajectory, descend, dpf, sgd
from reproduce.theory.problems import Logistic, Problem, Quadratic
from reproduce.theory.study import Record, run

__all__ = [
    "BoundComparison",
    "Logistic",
    "Problem",
    "Quadratic",
    "Record",
    "Trajectory",
    "dense_iterate",
    "descend",
    "dpf",
    "non_convex",
    "one_shot",
    "run",
    "sgd",
    "strongly_convex",
]
