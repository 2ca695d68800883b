"""Rows of numbers as real bytes, and back: vectorised over clients, on their device.

bits.py        fields of a few bits in rows of bits; rows of bytes of unequal length
pieces.py      columns that are searched together, and how many of them are sent
picks.py       the k largest entries of each tensor, exactly k, ties by lowest index; picks_kernel.py: on a GPU
sparse.py      the layout of a message: picked positions (Golomb), signs, floats
ternary.py     sparse messages: one magnitude per tensor and signs, or values; ternary_kernel.py: on a GPU
byte.py        every entry as a whole number of 8 bits; byte_kernel.py: on a GPU, in one pass
"""
