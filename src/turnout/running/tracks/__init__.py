"""What is federated: a track drives its own round on any runtime that keeps its promise.

    track        what every track offers to the loop of running/; what they share
    prepare      from an experiment to a track: data loaded, model built, everything checked before the first round
    building     the pieces of that: a module from a model, weights from a file, parts tied to the data
    rebuild      a run's model without its data
    weights      the weight track: parameters, by the round of round.py
    hindsight    what the missing would have sent, where an experiment asks for it
    scores/      the score track: scores on public samples, by a round of its own

May import the runtimes and everything below them. Records, running and reports import tracks, never the other way.
"""
