"""The live page: runs of a folder in the browser, as they go on. `turnout watch` starts it.

serving.py   the server process: its address, its token, how it ends; read this first
app.py       which address shows which page, and which does something
guard.py     who may look, who may press buttons, what a page may load
watched.py   what is in the folder: runs, studies, races; what changed since the last look
changes.py   tells the pages that something changed (Server-Sent Events)
overview.py  the first page: runs, studies, races
run_page.py  the pages of a run: curves, who is training now, its clients, one client, several runs compared
devices.py   a deployment's devices: present, working, last seen
races.py     the race of `turnout advise`
acting.py    start, stop and resume a run
*.html are the templates; watch.css and watch.js go with them, beside those of the report

Everything is read from the records. May import all rooms but the command line.
"""
