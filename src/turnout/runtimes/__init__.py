"""Where client work runs: a runtime maps it over a cohort, and nothing else.

    setup        what a runtime is made from; one model of what the server holds
    client_pool  `ClientPool`: samples, kept rows and a trainer for some clients; every runtime is made of them
    inprocess    the default: all clients simulated in this process, and what every simulation draws
    timing       how devices turn bytes and steps into seconds, and those into the turnout
    parted       parts of a cohort for workers elsewhere, which remember nothing; which settings start which runtime
    crew         such workers: parts are dealt out, repeated where a worker dies, and collected
    processes    groups of workers as processes of torch.distributed
    ray          groups of workers on a Ray cluster
    wire         the records of exchange.py as trees, and trees as bytes or tensors
    border       what a device may send: kinds of values, and a schema for each kind of answer
    remote       clients on real devices: tasks for them, and the device's own side

Tracks, evaluation, records and the loop see only the promise in exchange.py.
"""
