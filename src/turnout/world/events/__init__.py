"""Who joins and leaves when. An entry of `World.events` gives events; the calendar puts those of all entries together.

base.py       what an entry promises, and the plainest: Join and Leave, one event each; read this first
log.py        the events of a CSV file
random.py     joins, leaves and returns drawn from rates
calendar.py   all entries as one calendar; impossible events are refused before the first round

A new kind of entry is one module here that ends in `KINDS`. May import the root's values and world.client_names.
"""

from turnout.world.events.base import Event, Events, Join, Leave, PlannedEvents, Setting, number_of
from turnout.world.events.calendar import Calendar, calendar_of
from turnout.world.events.log import EventLog
from turnout.world.events.random import RandomEvents

__all__ = [
    "Calendar",
    "Event",
    "EventLog",
    "Events",
    "Join",
    "Leave",
    "PlannedEvents",
    "RandomEvents",
    "Setting",
    "calendar_of",
    "number_of",
]
