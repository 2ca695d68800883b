"""Local methods as terms of the gradient, any number of them in a list.

Read base.py first (`LocalTerm`, its six members and the optional classes), then

    proximal            FedProx: a pull towards the start
    elastic             penalises moving parameters that carry much Fisher information; elastic_kernel: its upload
                        in one pass on a GPU
    control_variates    SCAFFOLD, FedGATE, VRL-SGD: subtract how a client's gradient differs from the average
    mime                MimeLite: the server's momentum in every local step
    apfl                APFL: a second, personal model for each client
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
    "Applied",
    "At",
    "Departures",
    "Extra",
    "FusedStep",
    "LocalTerm",
    "Notifies",
    "ObjectiveChange",
    "PersonalModel",
    "PostStep",
    "SelectiveDownload",
    "ServerShift",
    "Term",
    "TermTraits",
]
