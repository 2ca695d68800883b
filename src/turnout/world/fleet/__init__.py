"""A fleet's log: read it, look at it, replay it.

reading.py     how a log is to be read: columns, length of a round, what a missing row means
read.py        `read_fleet`: any log as one record; read this first
fleet.py       that record: who was asked in which round, who came, how much of the work each did
table.py       CSV and Parquet as blocks of cells; cells.py: cells as numbers and times; rows.py: the rows as numbers
assemble.py    from rows to rounds
faults.py      everything that is wrong with a log, with line numbers

May import the root's values and machine.
"""

from turnout.world.fleet.fleet import Fleet
from turnout.world.fleet.read import read_fleet
from turnout.world.fleet.reading import Reading

__all__ = ["Fleet", "Reading", "read_fleet"]
