"""The public names, in reading order; `import turnout` finds them here when they are first used."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import turnout.data as data
import turnout.models as models
import turnout.roles as roles
from turnout import __version__
from turnout.data import partition
from turnout.errors import UserError
from turnout.experiment import Algorithm, Evaluate, Experiment, Stop, World
from turnout.fleet import Fleet, Reading, read_fleet
from turnout.fleet.advice import Advice, advise
from turnout.parts import personal, selection, terms
from turnout.parts.aggregation import WeightedSum, weighted_mean, weighted_sum
from turnout.parts.closing import Buffered, Deadline, FirstReplies, Percentile, WaitForAll
from turnout.parts.compression.base import Dense
from turnout.parts.compression.quantise import Quantise
from turnout.parts.compression.ternary import LiteralTernary, SparseTernary, TopK
from turnout.parts.local import Local
from turnout.parts.membership.policy import Constants, DropInactive, Membership
from turnout.parts.mixing import FedAMP, SharedStart
from turnout.parts.optimizers import SGD, Adam
from turnout.parts.robust.clipping import CentredClip, NormClip
from turnout.parts.robust.coordinates import CoordinateMedian, TrimmedMean
from turnout.parts.robust.distances import GeometricMedian, Krum, MultiKrum
from turnout.parts.schedules import Constant, Custom, InverseClock, TheoryRate
from turnout.parts.server import ServerAdagrad, ServerAdam, ServerSGD, ServerYogi
from turnout.parts.substitution.base import NoSubstitution, Spread
from turnout.parts.substitution.friends import Candidates, Friends
from turnout.parts.substitution.stale import Stale
from turnout.parts.terms.apfl import APFL
from turnout.parts.terms.control_variates import VRLSGD, FedGATE, Scaffold
from turnout.parts.terms.elastic import Elastic
from turnout.parts.terms.mime import MimeLite
from turnout.parts.terms.proximal import Proximal
from turnout.parts.weighting import ByShare, ByWork, CompleteOnly, FedAvg, FedNova, Shares, Weighting
from turnout.running.config.kinds import KINDS
from turnout.running.result import Run, RunGroup, load_model, open_run
from turnout.running.runs import run
from turnout.runtimes.settings import InProcess, Processes, Ray
from turnout.suggestions import suggest_names, suggest_settings
from turnout.task import Classification, Metric, NextCharacter, Regression, Task
from turnout.types import Turnout
from turnout.view.report.comparison import Comparison, compare
from turnout.world import attacks, devices, participation
from turnout.world.events import EventLog, Join, Leave, RandomEvents

if TYPE_CHECKING:
    from turnout.scores.settings import Distil, EarlyStopping, Scores, Uses, paper_literal

# Names of satellites, and the module of each: imported when the name is used, so that the others work without it.
SATELLITES = dict.fromkeys(("Distil", "EarlyStopping", "Scores", "Uses", "paper_literal"), "turnout.scores.settings")


def __getattr__(name: str) -> Any:
    if name not in SATELLITES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(SATELLITES[name]), name)


__all__ = [
    "APFL",
    "SGD",
    "VRLSGD",
    "Adam",
    "Advice",
    "Algorithm",
    "Buffered",
    "ByShare",
    "ByWork",
    "Candidates",
    "CentredClip",
    "Classification",
    "Comparison",
    "CompleteOnly",
    "Constant",
    "Constants",
    "CoordinateMedian",
    "Custom",
    "Deadline",
    "Dense",
    "Distil",
    "DropInactive",
    "EarlyStopping",
    "Elastic",
    "Evaluate",
    "EventLog",
    "Experiment",
    "FedAMP",
    "FedAvg",
    "FedGATE",
    "FedNova",
    "FirstReplies",
    "Fleet",
    "Friends",
    "GeometricMedian",
    "InProcess",
    "InverseClock",
    "Join",
    "Krum",
    "Leave",
    "LiteralTernary",
    "Local",
    "Membership",
    "Metric",
    "MimeLite",
    "MultiKrum",
    "NextCharacter",
    "NoSubstitution",
    "NormClip",
    "Percentile",
    "Processes",
    "Proximal",
    "Quantise",
    "RandomEvents",
    "Ray",
    "Reading",
    "Regression",
    "Run",
    "RunGroup",
    "Scaffold",
    "Scores",
    "ServerAdagrad",
    "ServerAdam",
    "ServerSGD",
    "ServerYogi",
    "SharedStart",
    "Shares",
    "SparseTernary",
    "Spread",
    "Stale",
    "Stop",
    "Task",
    "TheoryRate",
    "TopK",
    "TrimmedMean",
    "Turnout",
    "UserError",
    "Uses",
    "WaitForAll",
    "WeightedSum",
    "Weighting",
    "World",
    "__version__",
    "advise",
    "attacks",
    "compare",
    "data",
    "devices",
    "load_model",
    "models",
    "open_run",
    "paper_literal",
    "participation",
    "partition",
    "personal",
    "read_fleet",
    "roles",
    "run",
    "selection",
    "terms",
    "weighted_mean",
    "weighted_sum",
]

for found in [globals()[name] for name in __all__ if name not in SATELLITES]:
    if isinstance(found, ModuleType):
        suggest_names(found)
    else:
        suggest_settings(found)
for kinds in KINDS.values():
    for kind in kinds.values():
        suggest_settings(kind)
