"""Pages, pictures and tables of a run, or of a folder of runs, from its records only.

finding.py      which runs a folder holds
runs.py         what their records say: curves, totals, means over seeds
notebook.py     a run, or a folder of runs, in short
text.py         the same as text for a terminal; text_plot.py: its curves
figure.py       chosen curves as a picture file: SVG, PNG, PDF
export.py       records as files for other programs: CSV, Parquet
comparison.py   variants against the best of them, paired by seed
results.py      the table of results, the same in a terminal and on the page
warnings.py     what must be said before the numbers
page.py         the page, from title to footer, and the list of its sections: read this first
whole_page.py   what every page carries: style, script, and its own rules
sections.py     the sections that are tables or charts over rounds
lines.py        charts over rounds, a line for each variant; marks.py: what is marked in them
clock.py        simulated time: metrics against it, what devices spent, rounds as bars
clients.py      the sections about how clients differ
history.py      the part for one client, which is chosen on the page (history.js); client_rows.py reads its rows
maps.py         the sections that are heat maps: who turned up when, who stood in for whom
fleet.py        the diagnosis of a fleet's log, in a terminal; fleet_page.py: as a page
templates.py    jinja2, with escaping on; *.html are the templates, *.css and *.js go into the page
charts.py       line charts and sparklines as SVG, bars.py bars and histograms; svg.py is what all are made of
heat.py         heat maps as PNG
axes.py         ticks with round numbers
units.py        numbers as words

May import records and the values at the root; whatever runs an experiment is above it.
"""

from turnout.running.charts.page import renderer

render = renderer("turnout.view.report", "turnout.view.live")
