"""Real devices, reached through Flower. Only grid, apps, warm, superlink and simulated import flwr (`turnout[flower]`).

settings    what an experiment file says about it
messages    what server and devices say to each other, as bytes
link        how messages reach nodes, as a promise; grid.py keeps it with Flower's Grid
enrolled    who the clients are: names, keys, sample counts, which reply of each was used last
post        messages that are out, and answers that have come, their heads checked
work        one round: requests, models, replies, until it closes
runtime     the promise of exchange.py, made of these
replies     replies to work, read at the border (runtimes/border.py)
template    what a reply looks like: the pattern that the border reads replies by

device      the other side: one client that answers messages
rows        what it keeps on its disk
policy      whether it accepts work now
keys        how it proves who it is

grid, apps  Flower's Grid as a link; the ServerApp and the ClientApp
warm        a SuperNode and the ClientApp in one process that stays
superlink   Flower's SuperLink, with shorter ways for what happens often
"""
