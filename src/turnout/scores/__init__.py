"""The score track (paper 002): clients with labels and models of their own exchange scores on a public set.

    settings         the settings; which client uses which model when
    round            one round, from events to record: read this first
    exchange         the records that cross between server, runtime and clients; what a runtime promises
    score_table      the server's arithmetic: labels of the public samples, local update, β, global update
    privacy          the update of a private round, what goes with it, and clients that add noise themselves

    clients          `ScoreClients`: samples, models and public samples of some clients; every runtime is made of them
    training         models by architecture: train them, with early stopping; score the public samples; distil

    runtimes         where clients work: in this process, in others, and on real devices
    track            from an experiment to a track, which the loop of running/ drives

Imports the core only. The core finds it by name: `Scores.track_module`, running/config/kinds.py.
"""
