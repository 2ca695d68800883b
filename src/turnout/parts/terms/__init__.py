"""Local methods as terms of the gradient, any number of them in a list.

Read base.py first (the promise, and `LocalTerm` with its defaults), then

    proximal            FedProx: a pull towards the start
    elastic             paper 001: what is informative for somebody's data moves less; elastic_kernel: what it sends,
                        on a GPU in one pass
    control_variates    SCAFFOLD, FedGATE, VRL-SGD: take off how a client's gradient differs from everybody's
    mime                MimeLite: the server's momentum in every local step
    apfl                APFL: a second model of one's own
"""

from turnout.parts.terms.base import At, LocalTerm, ObjectiveChange, Term
from turnout.parts.updates import Applied
from turnout.types import Extra

__all__ = ["Applied", "At", "Extra", "LocalTerm", "ObjectiveChange", "Term"]
