"""Which method suits a fleet: from its log to a recommended experiment, and how certain that is.

advise.py      `advise`: from a log and an experiment to an advice: read this first
work.py        the work of an advice: compare, try further learning rates, race, ask how sure the answer is, try levers
race.py        the race: when a candidate at some rate is dropped, and why a wrong winner is rare
certainty.py   before one is called best: other logs of the fleet, and rare collapses
candidates.py  what methods are judged by, and the methods that race
levers.py      settings of production, with their costs
cases.py       the worlds in which they race
budget.py      what fits into the budget, and the display of what the time is spent on
trials.py      runs in memory, side by side, and their outcomes on disk
advice.py      the answer in words, as a table and as data; advice_page.py: its page and files
"""

from turnout.fleet.advice.advice import Advice
from turnout.fleet.advice.advise import advise

__all__ = ["Advice", "advise"]
