"""Records: what a run writes into its folder, and how it is read back.

records.py     the rows of `records.sqlite`: rounds, clients, evaluations, events
schema.py      its tables, and how such a file is opened, written and read safely
export.py      the rows as tables and frames for other programs, and as CSV files that a world can replay
glossary.py    which way a recorded number is better, and its unit
finding.py     the runs of a folder, and `runs.json`, the list of those made together
runs.py        the records of several runs: curves, totals, means over seeds
warnings.py    sentences about runs that mean nothing
checkpoint.py  `checkpoint.safetensors`: the state after a round
"""
