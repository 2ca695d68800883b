"""Devices: how fast each client computes, and how fast its links are. Read device_draw.py first.

A draw is addressed by client and round, so every algorithm meets the same devices under the same conditions, and a
million clients cost nothing but the cohort's own draws. How a round is timed by them is in runtimes/timing.py.
"""

from turnout.world.devices.device_draw import DeviceDraw, Devices
from turnout.world.devices.device_file import DeviceFile
from turnout.world.devices.tiers import Alike, SpreadDevices, Tiers

__all__ = ["Alike", "DeviceDraw", "DeviceFile", "Devices", "SpreadDevices", "Tiers"]
