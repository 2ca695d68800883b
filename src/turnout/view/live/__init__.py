"""The live page: the runs of a folder in the browser while they run. `turnout watch` starts it.

serving.py   the server process: its address, its token, how it ends; read this first
app.py       which address shows which page, and which button does what
guard.py     who may look, who may press buttons, what a page may load
watched.py   the folder and its runs; telling open pages that something changed
overview.py  the first page: runs
run_page.py  the pages of a run: curves, who is training now, clients, one client
acting.py    start, stop and resume a run
*.html are the templates; watch.css and watch.js go with them, beside those of running/charts
"""
