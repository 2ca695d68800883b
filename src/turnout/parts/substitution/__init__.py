"""Who stands in for those whose work does not count: what becomes of their shares.

base.py               the promise of a substitution; `NoSubstitution` leaves the shares unused, `Spread` spreads them
                      over the others: read this first
stale.py              the last update a client sent stands in for it
friends.py            paper 003: the share goes to the client present whose updates have been most alike
similarity_table.py   how alike any two clients' updates have been, and how often they met
slots.py              rows for clients as they come
random_projection.py  short rows to compare instead of whole updates; projection_kernel.py: the same on a GPU
"""

from turnout.parts.substitution.base import NoSubstitution, Spread, Substitutes, Substitution

__all__ = ["NoSubstitution", "Spread", "Substitutes", "Substitution"]
