"""Local training of many clients at once, with the same arithmetic by hand, under `vmap`, or one client at a time.

One round of local work, from the outside in:

job.py             what a round asks for (`Job`) and what comes back (`Trained`): read this first
train.py           `Trainer`: a job in chunks of clients, spread over threads
workers.py         the pool of threads, one core each
chunk.py           one chunk through its local steps, with terms and optimizer
batches.py         which samples each client sees at each step (batches.c: the same in C)
share_out.h        clients shared out among threads, for the sources in C
standing.py        where a chunk stands, as terms see it
term_rows.py       what terms send and keep in the end
own_samples.py     passes over a client's own samples: mean gradient, Fisher diagonal
trainers.py        choosing engine, device and chunk size for a network
trial.py           which engine is fastest for a large model on this machine

The gradient of a chunk:

gradients.py       what every engine offers
network.py         a model as the engine trains it
dropout.py         dropout with addressed masks
autograd.py        engines on torch's autograd: `vmap`, and the plain loop that tests compare with
own_kernels.py       operations of torch that are replaced inside `vmap`:
stacked.py             what they have in common
recurrent.py           nn.LSTM and nn.GRU
stacked_convolution.py, stacked_attention.py
by_hand.py         the engine on the hand-written pass:
backprop.py          a model as a stack of layers; forward and backward
layers.py            the layers: dense, convolution, ReLU, softmax, max-pool, flatten, dropout
batch_norm.py        BatchNorm
losses.py            the losses and their gradients
gradient_sinks.py    where gradients are written: added to the weights, to a matrix, or squared
factored.py          large dense layers as a common start plus a low-rank update

native/            SGD and Adam on small models in C
gpu/               Triton kernels and CUDA graphs

May import the root's values, machine, world, data, models and parts; clients, evaluation and the round import it.
"""
