"""Pictures and tables of a run, or of a folder of runs, from its records only."""

from turnout.report.finding import find_runs
from turnout.report.page import write_picture, write_report
from turnout.report.results import results_table
from turnout.report.units import sparkline

__all__ = ["find_runs", "results_table", "sparkline", "write_picture", "write_report"]
