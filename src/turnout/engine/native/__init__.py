"""Local steps in C, for SGD and Adam on small models on a CPU.

steps.py          a model's layers as C structs, and the call that trains some clients: read this first
local_steps.c     clients, one after another, on threads that share them out (../share_out.h)
memory.h, step.h  where the numbers of a client's layers lie; one of its steps
dense.h, convolution.h, small_layers.h    forward, backward and update of each layer
vectors.h         vectors as wide as the machine's, their sums and transposes

May import backprop, layers, batches and losses of engine/, and what engine/ may import.
"""
