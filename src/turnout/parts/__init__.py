"""What you do about partial turnout: the parts of an algorithm, one module or package a role.

In the order of a round:

membership/       who is a member: joining, leaving, being dropped
selection.py      whom the server asks
mixing.py         what each client starts from
local.py          what a client does with its data: how much work, and with
  optimizers.py   SGD or Adam,
  schedules.py    a learning rate that follows the clock,
  terms/          and local methods that change the gradient (FedProx, SCAFFOLD, ...)
personal.py       which parameters stay with the client
compression/      how updates travel, and how many bytes that takes
closing.py        when the server stops waiting, and what becomes of late replies
substitution/     who stands in for those who are missing
weighting.py      how much each reply counts
aggregation.py    how the updates become one
robust/           and how, where some of them are hostile
server.py         how the server applies it

arrived.py        what the server knows of a round's replies: the record that its parts are given
compatibility.py  what makes no sense together, refused before the first round

A new method is an object of one of these roles: a class in the role's module, or in a new module of the role's package,
and its name in that module's KINDS. Parts import values (the root's types, layout, rng, errors), world and machine, and
one another's promises; never the engine, a runtime or a record.
"""
