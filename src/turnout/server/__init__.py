"""The server's half of a round, around its arithmetic (which is in round.py and in the parts).

    state       `Server`: everything it carries from round to round, and so everything a checkpoint holds; `Context`
    membership  the beginning of a round: clients join and leave
    asking      which clients it asks, the share each stands for, and what it sends them
    collecting  what it has when a round is closed
    late        the same in simulated time: late replies that are discarded, or arrive in a later round

Imports the parts, exchange and experiment; never a runtime.
"""
