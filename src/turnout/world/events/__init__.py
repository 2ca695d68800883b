"""Clients that join and leave, and when.

entries.py    what an entry of `World.events` promises, and our kinds of entries: read this first
calendar.py   all entries as one calendar; impossible events are refused before the first round

A new kind of entry is one module here that ends in `KINDS`.
"""

from turnout.world.events.calendar import Calendar, calendar_of
from turnout.world.events.entries import Event, EventLog, Events, EventSetting, Join, Leave, PlannedEvents, RandomEvents

__all__ = [
    "Calendar",
    "Event",
    "EventLog",
    "EventSetting",
    "Events",
    "Join",
    "Leave",
    "PlannedEvents",
    "RandomEvents",
    "calendar_of",
]
