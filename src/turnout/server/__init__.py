"""The server's half of a round, around its arithmetic (which is in round.py and in the parts).

    state       `Server`: everything it carries from round to round, and so everything a checkpoint holds
    membership  the beginning of a round: clients join and leave
    cohort      which clients it asks, and the share each stands for
    downloads   what it sends them, and how many bytes that is
    in_flight   late replies that arrive in a later round
    collecting  what it has when a round is closed

Imports the parts, exchange, experiment and context; never a runtime.
"""
