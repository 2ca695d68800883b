"""Rows of numbers as real bytes, and back: vectorised over clients, on the device they are on.

bits.py        fields of a few bits in rows of bits; rows of bytes of unequal length
pieces.py      which columns are looked through together, and how many of them are sent
picks.py       the k largest entries of each tensor, exactly k, ties by lowest index; picks_kernel.py: on a GPU
sparse.py      the message: picked positions (Golomb), signs, floats
ternary.py     entries as one magnitude a tensor and a sign each; ternary_kernel.py: the same on a GPU
values.py      entries as a float each
byte.py        every entry as a whole number of 8 bits; byte_kernel.py: the same on a GPU, in one pass
"""
