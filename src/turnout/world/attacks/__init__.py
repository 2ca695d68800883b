"""Clients that do not do what they say: attacks on what is sent, as parts of a simulated world.

base.py      what an attack may change, and who attacks; read this first
updates.py   what is sent instead of an update: sign flip, noise, ALIE, inner product, nothing at all
claims.py    lies about work done and samples held

Attacks on the data (labels flipped, a backdoor) wrap the data: turnout/data/poison.py. Both draw the same clients from
the same seed. A new attack is a class here, and its name in the module's `KINDS`. May import the root's values.
"""

from turnout.world.attacks.base import Attack, Attackers, Scene, attackers_of, check_attackers, hostile_clients
from turnout.world.attacks.claims import ClaimExamples, ClaimWork
from turnout.world.attacks.updates import ALIE, FreeRider, InnerProduct, Noise, SignFlip

__all__ = [
    "ALIE",
    "Attack",
    "Attackers",
    "ClaimExamples",
    "ClaimWork",
    "FreeRider",
    "InnerProduct",
    "Noise",
    "Scene",
    "SignFlip",
    "attackers_of",
    "check_attackers",
    "hostile_clients",
]
