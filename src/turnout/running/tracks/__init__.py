"""What is federated: a track drives its own round on any runtime that keeps its promise.

track         what every track offers to the loop of running/; what they share
prepare       from an experiment to a track: data loaded, model built, everything checked before the first round
building      the pieces of that: a module from a model, weights from a file, parts bound to the data, checks
preflight     warnings before the first round
first_values  a model's values before the first round
rebuild       a run's model without its data
weights       the weight track: parameters, by the round of round.py
hindsight     what absent clients would have sent, if an experiment asks for it
"""
