"""Which method suits a fleet: from its log to a recommended experiment, and how certain that is.

advise.py      `advise`: from a log and an experiment to an advice; tuning, the race: read this first
candidates.py  what methods are judged by, and the methods that race
cases.py       the worlds in which they race
race.py        the state of the race, when a candidate is dropped, what fits into the budget, and the display
trials.py      runs in memory, side by side, and their outcomes on disk
advice.py      the answer in words, as a table and as data; advice_page.py: its page and files
"""

from turnout.fleet.advice.advice import Advice
from turnout.fleet.advice.advise import advise

__all__ = ["Advice", "advise"]
