"""The public names: a dozen at the top (`to.Experiment`, `to.run`), and a namespace per role (`to.weighting.ByWork`).

`import turnout` finds them here when they are first used. A namespace is the module that holds the role's parts, or a
class below where several modules do; it has every kind of its role, also one that was added as a file. Names of
satellites (`to.compare`, `to.scores`, ...) are imported when they are used.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import turnout.data as data
import turnout.models as models
import turnout.parts.membership.policy as membership
import turnout.parts.mixing as mixing
import turnout.parts.optimizers as optimizers
import turnout.parts.personal as personal
import turnout.parts.schedules as schedules
import turnout.parts.selection as selection
import turnout.parts.server as server
import turnout.parts.weighting as weighting
import turnout.settings as runtime
import turnout.tasks as tasks
import turnout.world.attacks as attacks
import turnout.world.devices as devices
import turnout.world.events as events
import turnout.world.participation as participation
from turnout import __version__, errors
from turnout.data import partition
from turnout.errors import UserError
from turnout.experiment import Algorithm, Evaluate, Experiment, Stop, World
from turnout.models.adapters import LoRA
from turnout.parts import closing
from turnout.parts.local import Local
from turnout.parts.membership.policy import Membership
from turnout.parts.optimizers import SGD, Adam, AdamW
from turnout.parts.privacy.private import Private
from turnout.parts.schedules import InverseClock
from turnout.parts.secure import SecureSum
from turnout.running import runs
from turnout.running.config.kinds import KINDS, ROLES
from turnout.running.result import Run, RunGroup, load_model, open_run
from turnout.running.tracking import NO_HOOKS, with_hooks
from turnout.suggestions import find_elsewhere, suggest_settings, suggesting
from turnout.world.events import Join, Leave

if TYPE_CHECKING:
    import turnout.fleet as fleet
    import turnout.scores.settings as scores
    from turnout.fleet.advice.advise import advise
    from turnout.view.report.comparison import compare

# The report writer and trackers are a satellite's: a run without it writes its records only.
_view = importlib.util.find_spec("turnout.view")
run = with_hooks(runs.run, NO_HOOKS if _view is None else importlib.import_module("turnout.view").HOOKS)

__all__ = [
    "SGD", "Adam", "AdamW", "Algorithm", "Evaluate", "Experiment", "InverseClock", "Join", "Leave", "LoRA", "Local",
    "Membership", "Private", "Run", "RunGroup", "SecureSum", "Stop", "UserError", "World", "__version__", "advise",
    "aggregation", "attacks", "closing", "compare", "compression", "data", "devices", "events", "fleet", "load_model",
    "membership", "mixing", "models", "open_run", "optimizers", "participation", "partition", "personal", "roles",
    "run", "runtime", "schedules", "scores", "selection", "server", "substitution", "tasks", "terms", "weighting",
]  # fmt: skip
SATELLITES = {
    "advise": "turnout.fleet.advice.advise:advise",
    "compare": "turnout.view.report.comparison:compare",
    "fleet": "turnout.fleet",
    "scores": "turnout.scores.settings",
}


class _Namespace(type):
    """The class of namespaces: suggests near names for an unknown one."""

    def __getattr__(cls, name: str) -> Any:
        raise suggesting(f"turnout.{cls.__name__}", name, vars(cls))


class aggregation(metaclass=_Namespace):  # noqa: N801
    """How updates become one: the weighted sum, and robust aggregations."""

    from turnout.parts.aggregation import Aggregation, WeightedSum
    from turnout.parts.products import ProductMean
    from turnout.parts.robust import (
        CentredClip,
        CoordinateMedian,
        GeometricMedian,
        Krum,
        MultiKrum,
        NearestMixing,
        NormClip,
        TrimmedMean,
    )


class compression(metaclass=_Namespace):  # noqa: N801
    """How updates travel."""

    from turnout.parts.compression.base import Compression, Dense, Sending
    from turnout.parts.compression.lossy import Quantise, SparseTernary, TopK


class roles(metaclass=_Namespace):  # noqa: N801
    """The roles of an experiment, as classes: your own part that a file names must be derived from its role,
    `class Median(to.roles.Aggregation)`. In Python any object with a role's methods will do. `check_settings` refuses
    settings that are out of range.
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

    check_settings = staticmethod(errors.check_settings)


class substitution(metaclass=_Namespace):  # noqa: N801
    """What happens to the shares of absent clients."""

    from turnout.parts.substitution.base import NoSubstitution, Spread, Stale, Substitution
    from turnout.parts.substitution.friends import Candidates, Friends


class terms(metaclass=_Namespace):  # noqa: N801
    """Local methods, as terms of the gradient."""

    from turnout.parts.terms.baselines import APFL, MimeLite, Proximal
    from turnout.parts.terms.control_variates import VRLSGD, FedGATE, Scaffold
    from turnout.parts.terms.elastic import Elastic


def __getattr__(name: str) -> Any:
    """A name of a satellite."""
    if name not in SATELLITES:
        raise AttributeError(f"module 'turnout.public' has no attribute {name!r}")
    place, _, inner = SATELLITES[name].partition(":")
    package = ".".join(place.split(".")[:2])
    if importlib.util.find_spec(package) is None:
        raise UserError(f"turnout.{name} needs {package}, which is not installed here")
    module = importlib.import_module(place)
    if inner:
        return getattr(module, inner)
    find_elsewhere(module, f"turnout.{name}", {})
    return module


def unknown_name(name: str) -> AttributeError:
    """The error for a name that is not at the top: it may be in a namespace, or misspelt."""
    here = sys.modules[__name__]
    for space in (space for space in __all__ if space not in SATELLITES):
        if space[0].islower() and name in getattr(getattr(here, space), "__dict__", ()):
            return AttributeError(f"module 'turnout' has no attribute {name!r}: use turnout.{space}.{name}", name=name)
    return suggesting("turnout", name, __all__)


def _fill_namespaces() -> None:
    """Add kinds that are not listed above to their namespaces (those of satellites are imported when used), and
    suggestions for misspelt settings."""
    here = sys.modules[__name__]
    for name in dict.fromkeys(role.public for role in ROLES if role.public):
        found, roles_here = getattr(here, name), [role for role in ROLES if role.public == name]
        for maker in (maker for role in roles_here for maker in KINDS[role.protocol].values()):
            if maker.__name__ not in vars(found):
                setattr(found, maker.__name__, maker)
        if isinstance(found, ModuleType):
            places = [place for role in roles_here for place in role.satellites.values()]
            find_elsewhere(found, f"turnout.{name}", {place.rpartition(":")[2]: place for place in places})
    for kind in (*(getattr(here, name) for name in __all__ if name[0].isupper()),
                 *(maker for kinds in KINDS.values() for maker in kinds.values())):  # fmt: skip
        suggest_settings(kind)
    for name, known in vars(importlib.import_module("turnout.parts.terms")).items():
        if not name.startswith("_") and name not in vars(terms):  # the base classes of terms
            setattr(terms, name, known)


_fill_namespaces()
