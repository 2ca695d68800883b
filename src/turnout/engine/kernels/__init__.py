"""Kernels in C and Triton, and CUDA graphs: faster forms of what engine/ does with torch, which it falls back to.

The engine calls native.py (SGD and Adam on small models in C), layers.py and convolution.py (layers with Triton
kernels), recurrence.py, optimizer_steps.py and graphs.py. few_channels.py, pixels.py,
dense.py and small_layers.py are behind layers.py and convolution.py. Sources in C are in c/: local_steps.c trains
clients (step.h: one step; memory.h: where a client's numbers lie; a header for each kind of layer), batches.c orders
samples, dropout.c makes masks.
"""
