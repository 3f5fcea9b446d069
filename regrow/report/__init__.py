"""Show runs as figures and as one HTML page.

>>> from regrow.report import plot_run, write_report
>>> write_report(["runs"], "report.html")
"""

from regrow.report.page import write_report
from regrow.report.render import can_draw, plot_run
from regrow.report.tables import Published

__all__ = ["Published", "can_draw", "plot_run", "write_report"]
