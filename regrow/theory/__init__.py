"""The convergence theorems as runnable checks on the real implementation, and the picture that explains them.

python -m regrow.theory results/theory        # every experiment: records (JSON lines) and figures
"""

from regrow.theory.bounds import Comparison, dense_iterate, non_convex, one_shot, strongly_convex
from regrow.theory.descent import Trajectory, descend, dpf, sgd
from regrow.theory.problems import Logistic, Problem, Quadratic
from regrow.theory.study import Record, run

__all__ = [
    "Comparison",
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
