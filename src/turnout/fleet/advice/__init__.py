"""Which method suits a fleet: from its log to a recommended experiment, with how sure that is.

advise.py      `advise`: from a log and an experiment to an advice; read this first
work.py        tuning, the race, what the answer hinges on
candidates.py  what a fleet may be trained with; aims.py: what for, as one number
fleet.py       what is taken from the log; cases.py: the worlds in which candidates race
plan.py        what fits into the budget
trial.py       one run in memory, and many side by side; ledger.py: what was found so far, on disk
race.py        who is still in, and the bound by which one is dropped
display.py     the live table
advice.py      the answer, as words, table, data and files; cost.py: what it costs; page.py: its page, with intervals.py
known.py       fleets with a known answer, to check all this on

May import whatever runs experiments, and the report's pieces.
"""

from turnout.fleet.advice.advice import Advice
from turnout.fleet.advice.advise import advise

__all__ = ["Advice", "advise"]
