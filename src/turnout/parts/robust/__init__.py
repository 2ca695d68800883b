"""Aggregations that a hostile minority cannot steer: the result stays near most replies.

votes.py       `Robust`, the base of these aggregations; the replies of a round with their weights as votes
coordinates.py one parameter at a time: coordinate median, trimmed mean
distances.py   whole updates: geometric median (RFA), Krum, multi-Krum
clipping.py    updates cut to a length: norm clipping, centred clipping

A reply's weight is its votes: its share, the shares lent to it by a substitution, a boost. The result has the size of
the weighted sum: Σ weight times the centre, so a missing share keeps the old model where the weighting wants that. A
breakdown point is the share of the *weight of the replies* that may be hostile; with few replies that share is soon
reached, and a client that overstates its samples has more of it (`Shares(by="uniform")` gives every client one vote).

Aggregations that guard "updates" combine statistics, moments and uploads of terms as usual (a run warns about it);
those that guard "replies" ignore everything of the replies they do not choose.
"""
