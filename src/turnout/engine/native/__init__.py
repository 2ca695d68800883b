"""Local steps in C, for SGD and Adam on small models on a CPU.

steps.py          a model's layers as C structs, and the call that trains some clients: read this first
local_steps.c     forward, backward and update of each layer; all steps of one client after another

May import backprop, layers, batches and losses of engine/, and what engine/ may import.
"""
