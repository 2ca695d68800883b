"""Local training of many clients at once, with the same arithmetic by hand, under `vmap`, or one client at a time.

A round from the outside in: job.py (a round's input and output: read it first), train.py (`Trainer`), chunk.py (some
clients through their steps), batches.py, own_samples.py; trainers.py chooses engine, device and chunk size.
The gradient of a chunk: gradients.py (the interface, and torch's autograd with network.py, dropout.py, stacked.py and
recurrent.py); joined.py (one pass over a frozen base for all clients' samples); by_hand.py with backprop.py and
layers.py (the hand-written pass). kernels/ has faster forms in C and Triton.
"""
