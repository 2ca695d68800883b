"""Where client work runs: a runtime maps it over a cohort, and nothing else.

    settings     what an experiment file says about it; imports nothing, so that anybody may name a runtime
    setup        what a runtime is made from
    clients      `ClientPool`: samples, kept rows and a trainer for some clients; every runtime is made of them
    needs        how they compute, and the memory it takes; held_rows: rows that say which model a client holds
    whole_model  one model of what the server holds
    inprocess    the default: all clients simulated in this process, and what every simulation draws
    parted       parts of a cohort for workers elsewhere, which remember nothing; keeping: what is started for them
    processes    such workers as processes of torch.distributed; ranks: how these talk
    ray          such workers on a Ray cluster; crew: those who are at hand, and who steps in for whom
    timing       how devices turn bytes and steps into seconds, and those into the turnout
    wire         the records of exchange.py as bytes
    border       what a device may send: a typed schema for each kind of answer
    schema       kinds of values, and messages read by them
    table        which settings start which runtime

May import the round and everything below it. Tracks, evaluation, records and the loop see only the promise in
exchange.py.
"""
