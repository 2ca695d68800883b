"""The roles of an experiment, as classes: your own part that a file names must be derived from its role.

    class Median(to.roles.Aggregation): ...

In Python any object with a role's methods will do.
"""

from turnout.data.federation import DataSpec
from turnout.data.partition import Partition
from turnout.data.sizes import Sizes
from turnout.experiment import AlgorithmSpec
from turnout.models.layers import ModelSpec
from turnout.parts.aggregation import Aggregation
from turnout.parts.closing import Closing
from turnout.parts.compression.base import Compression
from turnout.parts.mixing import Mixing
from turnout.parts.optimizers import Optimizer
from turnout.parts.schedules import Schedule
from turnout.parts.selection import Selection
from turnout.parts.server import ServerStep
from turnout.parts.substitution.base import Substitution
from turnout.parts.terms.base import Term
from turnout.parts.weighting import Weighting
from turnout.running.tracking import Tracker
from turnout.settings import RuntimeSpec
from turnout.tasks import TaskSpec
from turnout.world.attacks import Attack
from turnout.world.devices import Devices
from turnout.world.events import Events
from turnout.world.participation import Participation

__all__ = [
    "Aggregation", "AlgorithmSpec", "Attack", "Closing", "Compression", "DataSpec", "Devices", "Events", "Mixing",
    "ModelSpec", "Optimizer", "Participation", "Partition", "RuntimeSpec", "Schedule", "Selection", "ServerStep",
    "Sizes", "Substitution", "TaskSpec", "Term", "Tracker", "Weighting",
]  # fmt: skip
