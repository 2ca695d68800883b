"""The public names, in reading order; `import turnout` finds them here when they are first used."""

from turnout import data, models, participation, personal, selection
from turnout.adaptive import Adam, ServerAdagrad, ServerAdam, ServerYogi
from turnout.aggregation import Apply, WeightedSum, weighted_mean, weighted_sum
from turnout.apfl import APFL
from turnout.compression import Dense
from turnout.data import partition
from turnout.elastic import Elastic
from turnout.errors import Mistake
from turnout.events import EventLog, Join, Leave
from turnout.friends import Candidates, Friends
from turnout.local import SGD, Constant, Custom, InverseClock, Local, TheoryRate
from turnout.membership import Constants, DropInactive, Membership
from turnout.mime import MimeLite
from turnout.mixing import Common, FedAMP
from turnout.quantise import Quantise
from turnout.randomevents import RandomEvents
from turnout.running import Run, open_run, run
from turnout.runtimes.settings import InProcess
from turnout.scores.settings import Distil, EarlyStopping, Scores, Uses, paper_literal
from turnout.settings import Algorithm, Evaluate, Experiment, Stop, World
from turnout.stale import Stale
from turnout.substitution import Dropout, Unused
from turnout.task import Classification, NextCharacter, Regression, Task
from turnout.terms import Proximal
from turnout.ternary import LiteralTernary, SparseTernary, TopK
from turnout.types import Turnout
from turnout.variates import VRLSGD, FedGATE, Scaffold
from turnout.version import __version__
from turnout.weighting import ByShare, ByWork, CompleteOnly, FedNova, Shares, Weighting

__all__ = [
    "APFL",
    "SGD",
    "VRLSGD",
    "Adam",
    "Algorithm",
    "Apply",
    "ByShare",
    "ByWork",
    "Candidates",
    "Classification",
    "Common",
    "CompleteOnly",
    "Constant",
    "Constants",
    "Custom",
    "Dense",
    "Distil",
    "DropInactive",
    "Dropout",
    "EarlyStopping",
    "Elastic",
    "Evaluate",
    "EventLog",
    "Experiment",
    "FedAMP",
    "FedGATE",
    "FedNova",
    "Friends",
    "InProcess",
    "InverseClock",
    "Join",
    "Leave",
    "LiteralTernary",
    "Local",
    "Membership",
    "MimeLite",
    "Mistake",
    "NextCharacter",
    "Proximal",
    "Quantise",
    "RandomEvents",
    "Regression",
    "Run",
    "Scaffold",
    "Scores",
    "ServerAdagrad",
    "ServerAdam",
    "ServerYogi",
    "Shares",
    "SparseTernary",
    "Stale",
    "Stop",
    "Task",
    "TheoryRate",
    "TopK",
    "Turnout",
    "Unused",
    "Uses",
    "WeightedSum",
    "Weighting",
    "World",
    "__version__",
    "data",
    "models",
    "open_run",
    "paper_literal",
    "participation",
    "partition",
    "personal",
    "run",
    "selection",
    "weighted_mean",
    "weighted_sum",
]
