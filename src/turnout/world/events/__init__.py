"""Clients that join and leave: entries.py has the kinds of entries, calendar.py all entries as one checked calendar."""

from turnout.world.events.calendar import Calendar, calendar_of
from turnout.world.events.entries import Event, EventLog, Events, EventSetting, Join, Leave, PlannedEvents, RandomEvents

__all__ = [
    "Calendar", "Event", "EventLog", "EventSetting", "Events", "Join", "Leave", "PlannedEvents", "RandomEvents",
    "calendar_of",
]  # fmt: skip
