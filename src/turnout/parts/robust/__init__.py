"""Aggregations that a hostile minority cannot steer: what comes out stays near what most replies say.

votes.py       a round's replies with what each weighs: a weight is that many votes
coordinates.py one parameter at a time: coordinate median, trimmed mean
distances.py   whole updates: geometric median (RFA), Krum, multi-Krum
clipping.py    updates cut to a length: norm clipping, centred clipping

A reply has its weight for votes: its share, what a stand-in lends it (a vote of the stand-in: one more for what the
friend says), a boost. What comes out is of the size of the weighted sum: Σ weight times the centre, so a missing share
keeps the old model where the weighting says so. A breakdown point is the share of the *weight of those who replied*
that may be hostile; with few replies that share is soon reached, and a client that overstates its samples has more of
it (`Shares(by="uniform")` gives everybody one vote).

`guards` says what is kept from the hostile: their "replies" altogether (Krum: who is not chosen leaves no trace), or
their "updates" only, while statistics, moments and what terms send are combined as ever (a run that begins says so).

Each is a frozen dataclass in a module that ends in `KINDS`. May import the parts' values and aggregation.py.
"""
