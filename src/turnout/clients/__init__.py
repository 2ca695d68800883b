"""What a client keeps between rounds.

    state         `ClientState`: the rows of some clients as the round sees them, and what they make of a download
    store         `ClientStore`: the same rows by client id, on the GPU, in memory or on disk, with checkpoints
    calibration   BatchNorm statistics of newcomers, from one pass over their own samples

May import the engine, the parts and everything below them. The object that does the work, `ClientPool`, is in
runtimes/client_pool.py, because it runs `client_work` of round.py.
"""
