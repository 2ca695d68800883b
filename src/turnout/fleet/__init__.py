"""A fleet's log: read it, look at it, replay it.

reading.py     how a log is to be read: columns, length of a round, what a missing row means
read.py        `read_fleet`: any log as one record; read this first
fleet.py       that record: who was asked in which round, who came, how much of the work each did
table.py       CSV and Parquet as blocks of cells; cells.py: cells as numbers and times; rows.py: the rows as numbers
assemble.py    from rows to rounds
timed.py       check-ins and stretches of time as rounds
fedscale.py    FedScale's two traces; plain_pickle.py: pickled data, read without unpickling
faults.py      everything that is wrong with a log, with line numbers
match.py       which clients of a log are which of the data's; owners.py: a file that says so

blocks.py      work drawn from whole stretches of the log; sources.py: who takes after whom; seasons.py: days and weeks
statistics.py  what a log and what is drawn from it are compared by; spells.py: stays and absences
fitted.py      a model of the log, and work drawn from it; fit.py: how it is fitted
groups.py      who is away together; outages.py: when a group, or everyone, is out
diagnosis.py   what the log shows, in numbers; speaks_for.py: the parts to try
likeness.py    the log beside what is drawn from it
example.py     a log that is made up

May import the root's values, machine and world.client_names.
"""

from turnout.fleet.fleet import Fleet
from turnout.fleet.read import read_fleet
from turnout.fleet.reading import Reading

__all__ = ["Fleet", "Reading", "read_fleet"]
