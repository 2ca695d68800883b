"""What the benchmark of turnout is made of (the study itself is studies/bench.py).

data.py      five data sets that come with packages: how to make their files, and how they are divided among clients
turnouts.py  five kinds of turnout
pictures.py  heat map, critical-difference diagram

May import everything but the command line and the studies.
"""
