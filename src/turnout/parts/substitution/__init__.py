"""What happens to the shares of clients whose work does not count.

base.py              the promise of a substitution; `NoSubstitution` leaves the shares unused, `Spread` spreads them
                     over the others, `Stale` uses a client's last update: read this first
friends.py           the share goes to the present client with the most similar updates
similarity_table.py  the similarity of any two clients' updates, and how often they met
projection.py        short rows to compare instead of whole updates
"""

from turnout.parts.substitution.base import NoSubstitution, Spread, Substitutes, Substitution

__all__ = ["NoSubstitution", "Spread", "Substitutes", "Substitution"]
