"""Local training of many clients at once, with the same arithmetic by hand, under `vmap`, or one client at a time.

One round of local work, from the outside in:

job.py             a round's input (`Job`) and output (`Trained`): read this first
train.py           `Trainer`: a job in chunks of clients, spread over threads
chunk.py           one chunk through its local steps, with terms and optimizer
chunk_rows.py      the rows of a chunk and the terms' view of them; mean gradient and Fisher diagonal of own samples
batches.py         which samples each client sees at each step
trainers.py        choosing engine, device and chunk size for a network, by a short trial if the model is large

The gradient of a chunk:

gradients.py       the interface of every engine, and the pool of threads
network.py         a model as the engine trains it
dropout.py         dropout with addressed masks
autograd.py        engines on torch's autograd: `vmap`, and the plain loop that tests compare with
stacked.py         convolution and attention of many clients inside `vmap`
recurrent.py       nn.LSTM and nn.GRU inside `vmap`
by_hand.py         the engine on the hand-written pass:
backprop.py          a model as a stack of layers; forward and backward
layers.py            the layers: dense, convolution, ReLU, softmax, max-pool, flatten, dropout, BatchNorm
losses.py            the losses and their gradients
gradient_sinks.py    where gradients are written: added to the weights, to a matrix, or squared
factored.py          large dense layers as a common start plus a low-rank update

kernels/           C and Triton; the reading order ends before it

May import the root's values, machine, world, data, models and parts; clients, server and the round import it.
"""
