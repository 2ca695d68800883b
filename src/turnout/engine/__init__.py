"""Local training of many clients at once, with the same arithmetic by hand, under `vmap`, or one client at a time.

A round from the outside in: job.py (a round's input and output: read it first), train.py (`Trainer`), chunk.py and
chunk_rows.py (some clients through their steps), batches.py; trainers.py chooses engine, device and chunk size.
The gradient of a chunk: gradients.py (the interface), network.py, dropout.py; autograd.py with stacked.py and
recurrent.py (torch's autograd); by_hand.py with backprop.py, layers.py, losses.py, gradient_sinks.py and factored.py
(the hand-written pass). kernels/ has faster forms in C and Triton.
"""
