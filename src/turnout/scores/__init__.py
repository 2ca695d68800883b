"""The score track (paper 002): clients with labels and models of their own exchange scores on a public set.

    settings         what a person may choose
    round            one round, from events to record: read this first
    exchange         the records that cross between server, runtime and clients; what a runtime promises
    wire             these records as trees, for bytes

    state            the server: everything it carries from round to round
    public_labels    the labels of the public samples, which only the server has; accuracies
    score_table      the server's arithmetic: local update, β, global update
    averaging        weights averaged among clients of one architecture
    score_log        what is written down of a round

    clients          `ScoreClients`: samples, models and public samples of some clients; every runtime is made of them
    group            clients of one architecture in a round
    model_plan       which client uses which model when
    architectures    a trainer for each model and number of labels, and its clients' models
    client_models    the models of several clients, and the rows kept of them
    training         build a model, score the public samples
    early_stopping   build it epoch by epoch
    distillation     learn the global scores

    setup            what a runtime is made from
    inprocess        the default runtime: all clients simulated in this process
    parted           parts of a cohort for workers elsewhere: processes, Ray
    prepare          from an experiment to a track; which settings start which runtime
    track            what the loop of running/ drives

May import what the tracks may. Only `settings` is imported from outside, and `prepare` by tracks/prepare.py.
"""
