"""Local methods as terms of the gradient, any number of them in a list.

Read base.py first (`Term`, its six members, and the optional classes), then

    baselines           FedProx: a pull towards the start; MimeLite: the server's momentum in every local step; APFL: a
                        second, personal model for each client
    elastic             penalises moving parameters that carry much Fisher information
    control_variates    SCAFFOLD, FedGATE, VRL-SGD: subtract how a client's gradient differs from the average
"""

from turnout.parts.terms.base import (
    At,
    Departures,
    FusedStep,
    LocalTerm,
    Notifies,
    ObjectiveChange,
    PersonalModel,
    PostStep,
    SelectiveDownload,
    ServerShift,
    Term,
    TermTraits,
)
from turnout.parts.updates import Applied
from turnout.types import Extra

__all__ = [
    "Applied", "At", "Departures", "Extra", "FusedStep", "LocalTerm", "Notifies", "ObjectiveChange", "PersonalModel",
    "PostStep", "SelectiveDownload", "ServerShift", "Term", "TermTraits",
]  # fmt: skip
