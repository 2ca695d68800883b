"""What is fast on a GPU: Triton kernels for some layers and for Adam, and steps of any engine captured as CUDA graphs.

layers.py         the layers that have kernels, swapped in by engine/backprop.py: read this first
convolution.py    kernels: convolutions, each client with its own weights
positions.py      what they share with few_channels.py
few_channels.py   the same for few output channels in full float32
pixels.py         the same for pictures that lie pixel by pixel, which is faster
dense.py          kernels: large dense layers on small batches
lstm.py, gru.py   kernels: all positions of a recurrent layer, asked by engine/recurrent.py
recurrence.py       what they have in common
pooling.py        kernels: max-pooling without overlap
dropout.py        kernel: addressed dropout
optimizer_steps.py  kernels: steps of Adam and SGD, with terms that are springs or drifts; springs in a fused step
graphs.py         a local step captured as one CUDA graph
captured.py       a plain SGD step as such a graph

May import layers, gradient_sinks and batches of engine/, and what engine/ may import.
"""
