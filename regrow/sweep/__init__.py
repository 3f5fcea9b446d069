"""Train many recipes from one file, each in its own process, on this machine or on a cluster.

>>> from regrow.sweep import read_sweep, run_all
>>> folders = run_all(read_sweep("sweep.toml"), Path("runs/sweep"))
"""

from regrow.sweep.driver import Began, Listener, SweepError, SweepStoppedError, Update, run_all
from regrow.sweep.grid import read_sweep
from regrow.sweep.jobs import ClusterError, Job, Resources

__all__ = [
    "Began",
    "ClusterError",
    "Job",
    "Listener",
    "Resources",
    "SweepError",
    "SweepStoppedError",
    "Update",
    "read_sweep",
    "run_all",
]
