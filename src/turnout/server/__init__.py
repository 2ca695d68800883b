"""The server's side of a round, around its arithmetic (which is in round.py and in the parts).

    state      `Server`: everything it carries from round to round, and so everything a checkpoint holds
    cohort     whom it asks in a round, and what each stands for
    downloads  what clients had to download
    in_flight  replies that are still coming when a round is closed, and what time it is
    arriving   what arrives before a round is closed: who is late, and old replies that come in
    finite     what to do about replies that are not numbers
    opening    the beginning of a round: who joins and leaves, and what that does to the state

May import the parts, exchange.py and experiment.py; never a runtime.
"""
