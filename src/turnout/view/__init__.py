"""Looking at runs: report/ (pages, pictures, tables), live/ (`turnout watch`), trackers/ (TensorBoard, ...).

Reads records only. Nothing below imports this package: a run works without it.
"""

from turnout.running.charts.page import renderer

render = renderer("turnout.view.report", "turnout.view.live")
