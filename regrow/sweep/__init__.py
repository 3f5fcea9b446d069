"""Many runs from one file: a grid of recipes, each trained in its own process, on this machine or on a cluster.

>>> from regrow.sweep import read_sweep, run_all
>>> folders = run_all(read_sweep("sweep.toml"), Path("runs/sweep"))
"""

from regrow.sweep.driver import run_all
from regrow.sweep.events import Began, ClusterError, Listener, SweepError, SweepStoppedError, Update
from regrow.sweep.job import Job
from regrow.sweep.plan import read_sweep
from regrow.sweep.pools import Resources

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
