"""A fleet's log in any format: read it, diagnose it, draw from it, and get advice from it. A satellite.

read_log.py             `read_fleet`: any log as a ParticipationLog (participation_log.py); read this first
reading.py              settings of how a log is read; cells as numbers and times
rounds.py               from rows to rounds: numbered rows, check-ins, stays
fast_rows.py            the rows of a large log, by DuckDB
fedscale.py             public traces of availability: FedScale's, FLASH's
server_logs.py          server logs of Flower and NVFlare

fleet_participation.py  participation `fleet-log`, selection `as-fleet-log`
fleet_model.py          a model of a log, from which participation is drawn, and how it is fitted
observed_times.py       a run's recorded times as devices (`turnout fleet RUN --devices FILE`)
groups.py               clients that are away together
blocks.py               blocks of a log's rounds; log_statistics.py: by which a log and draws from it are compared

diagnosis.py            the diagnosis in numbers, and the parts to try
findings.py             what stands out: tests for outages (joint_absence.py), a trend, a rhythm (rhythm.py), labels
diagnosis_page.py       for a terminal, and as a page
example.py              an invented log
advice/                 which method suits a fleet
"""

from turnout.fleet.log_statistics import check_like_log
from turnout.fleet.participation_log import ParticipationLog
from turnout.fleet.read_log import read_fleet
from turnout.fleet.reading import Reading

__all__ = ["ParticipationLog", "Reading", "check_like_log", "read_fleet"]
