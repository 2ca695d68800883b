"""Writes digits.pt: the samples of the hundred clients of docs/tour.md, for the same experiment in other systems."""

import torch

import turnout as to

data = to.data.Digits(clients=100, partition=to.partition.Dirichlet(0.3)).load(seed=0)
rows = [data.train(torch.tensor([c])) for c in range(data.clients)]
clients = [(r.x[r.row_R], r.y[r.row_R]) for r in rows]
torch.save({"clients": clients, "test": data.central_test()}, "digits.pt")
