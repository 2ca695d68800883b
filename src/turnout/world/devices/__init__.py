"""What clients are: how fast each computes, how fast its links are, and when it is on.

base.py         the promise of `Devices`, what a draw of them is, noise and slow-downs: read this first
tiers.py        tiers of devices from published figures, each with its source
spreads.py      devices that are alike, or spread by a law: log-normal, or Pareto for heavy tails
charging.py     when devices are on a charger, by the hour of the simulated day
device_file.py  devices from a CSV file, and writing such a file
observed.py     from observed seconds of a run to such a file
timeline.py     bytes, steps and rates as seconds: pure arithmetic

A draw is addressed by client and round, so every algorithm meets the same devices in the same weather, and a million
clients cost nothing but the cohort's own draws. How a round is timed by them is in runtimes/timing.py.

May import the root's values and machine.
"""

from turnout.world.devices.charging import ChargingHours as ChargingHours
from turnout.world.devices.device_file import DeviceFile as DeviceFile
from turnout.world.devices.spreads import Alike as Alike
from turnout.world.devices.spreads import Spread as Spread
from turnout.world.devices.tiers import Tiers as Tiers
