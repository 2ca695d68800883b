"""Charts, pages and numbers as words: what reports, the live page, fleets and studies are drawn with.

units.py      numbers as words: sizes, durations, mean ± deviation, sparklines
axes.py       ticks with round numbers
svg.py        what every chart is made of, and several charts as one picture; charts.css has the colours
lines.py      line charts with bands and marks, sparklines, bars
heat.py       heat maps as PNG, and the map of who turned up when
page.py       one HTML file that needs nothing else: templates (*.html), styles (*.css) and scripts (*.js)
"""
