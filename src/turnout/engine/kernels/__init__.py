"""Kernels in C and Triton, and CUDA graphs: faster forms of what engine/ does with torch, which it falls back to.

The engine calls these, and nothing else:

native.py           `NativeSteps`, `NativeJob`: SGD and Adam on small models in C, on a CPU
layers.py           `supports`, `for_gpu`: the layers that have Triton kernels
convolution.py      `convolve`, `input_gradient`, `weight_gradient`, for any module under `vmap`
lstm.py, gru.py     `forward`, `backward`: all positions of a recurrent layer; recurrence.py has `fits`
optimizer_steps.py  `optimizer_step`, `pulled_descent`, `Spring`: steps of Adam and SGD, with the terms that allow it
graphs.py           `GraphCache`, `descend_captured`: a local step captured as one CUDA graph

Behind layers.py and convolution.py:

few_channels.py     convolutions with few output channels in full float32
pixels.py           convolutions of pictures that lie pixel by pixel, which is faster
dense.py            large dense layers on small batches
small_layers.py     max-pooling without overlap, addressed dropout

c/                  sources in C:
local_steps.c         clients, one after another, on threads that share them out (share_out.h)
memory.h, step.h      where the numbers of a client's layers lie; one of its steps
dense.h, convolution.h, small_layers.h    forward, backward and update of each layer
vectors.h             vectors as wide as the machine's, their sums and transposes
batches.c, dropout.c  the order of samples (engine/batches.py), dropout masks (engine/dropout.py)

May import layers, gradient_sinks, batches, backprop, job and losses of engine/, and what engine/ may import.
"""
