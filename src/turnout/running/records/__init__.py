"""Records: what a run writes into its folder, and how it is read back.

records.py     the rows of `records.sqlite`: rounds, clients, evaluations, events
observed.py    the turnout, and who joined and left, as CSV
same.py        whether two runs are the same, row by row
schema.py      its tables, and how such a file is opened, written and read safely
now.py         who is at work while a round goes on
tables.py      the rows as plain tables, for other programs
checkpoint.py  `checkpoint.safetensors`: the state after a round

May import the values of the root, the world and this machine; not tracks, runtimes or what runs them.
"""
