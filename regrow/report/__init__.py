"""A run or a sweep as pictures and as one HTML page.

>>> from regrow.report import plot_run, write_report
>>> write_report(["runs"], "report.html")
"""

from regrow.report.files import can_draw
from regrow.report.leaderboard import Published
from regrow.report.page import write_report
from regrow.report.plots import plot_run

__all__ = ["Published", "can_draw", "plot_run", "write_report"]
