"""What is fast on a GPU: Triton kernels for some layers and for Adam, and steps of any engine captured as CUDA graphs.

layers.py         the layers that have kernels, swapped in by engine/backprop.py: read this first
convolution.py    kernels: convolutions, each client with its own weights
dense.py          kernels: large dense layers on small batches
pooling.py        kernels: max-pooling without overlap
dropout.py        kernel: addressed dropout
triton_tools.py   Triton if it is installed, and helpers for its kernels
optimizer_steps.py  kernel: Adam's step
graphs.py         a local step captured as one CUDA graph
captured.py       a plain SGD step as such a graph

May import layers, gradient_sinks and batches of engine/, and what engine/ may import.
"""
