"""Pages, pictures and tables of a run, or of a folder of runs, from its records only (running/records/finding.py).

page.py            the report, from title to footer, and the list of its sections: read this first; a notebook's output
sections.py        the sections that are tables or charts over rounds
lines.py           charts over rounds, a line for each variant, with marks
clients.py         the sections about clients: a metric of each, who turned up when, who stood in for whom
history.py         the part for one client, which is chosen on the page
simulated_time.py  metrics against simulated time, the time devices spent, rounds as bars
results.py         the table of results, the same in a terminal and on the page
comparison.py      variants against the best of them, paired by seed
text.py            the same as text for a terminal
figure.py          chosen curves as a picture file: SVG, PNG, PDF
export.py          records as files for other programs: CSV, Parquet
"""

from turnout.running.charts.page import renderer

render = renderer("turnout.view.report", "turnout.view.live")
