"""Pages, pictures and tables of a run, or of a folder of runs, from its records only (running/records/finding.py).

page.py        the report, from title to footer, and the list of its sections: read this first
sections.py    the sections that are tables or charts over rounds
lines.py       charts over rounds, bytes or simulated time, a line for each variant, with marks; a picture file of them
clients.py     the sections about clients: a metric of each, who turned up when, who stood in for whom
results.py     the table of results, the same in a terminal and on the page
comparison.py  variants against the best of them, paired by seed
short.py       a run in short: its key numbers, as text for a terminal, in a notebook
card.py        a model card, in Markdown
export.py      records as CSV files for other programs
"""

from turnout.running.charts.page import renderer

render = renderer("turnout.view.report", "turnout.view.live")
