"""The parts of an algorithm, one module or package per role.

In the order of a round:

membership/       the members: joining, leaving, being dropped
selection.py      the cohort that the server asks
mixing.py         the weights each client starts from
local.py          local training: how much work, and with
  optimizers.py   SGD or Adam,
  schedules.py    a learning rate that follows the clock,
  terms/          and local methods that change the gradient (FedProx, SCAFFOLD, ...)
personal.py       which parameters stay with the client
compression/      how updates are sent, and how many bytes that takes
closing.py        when the server stops waiting, and what happens to late replies
substitution/     who stands in for missing clients
weighting.py      how much each reply counts
aggregation.py    how the updates become one
products.py       of adapters by their products,
robust.py         and how, where some of them are hostile
server.py         how the server applies it

updates.py        the replies of a round: the record that the server's parts get
compatibility.py  combinations that make no sense, refused before the first round

A new method is an object of one of these roles: a class in the role's module, or in a new module of the role's package,
and its name in that module's KINDS. Parts import types, layout, rng, errors, world and machine, and one another;
never the engine, a runtime or a record.
"""
