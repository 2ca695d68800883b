"""Rows of numbers as real bytes, and back: vectorised over clients, on the device they are on.

bits.py        fields of a few bits in rows of bits; rows of bytes of unequal length
picks.py       the k largest entries of each tensor, exactly k, ties by lowest index
sparse.py      the message: picked positions (Golomb), signs, floats
ternary.py     entries as one magnitude a tensor and a sign each; values.py: as a float each
byte.py        every entry as a whole number of 8 bits; byte_kernel.py: the same on a GPU, in one pass
"""
