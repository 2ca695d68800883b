"""Rows of numbers as real bytes, and back: vectorised over clients, on their device.

messages.py  rows of bytes of unequal length; the pieces of a row
picks.py     the k largest entries of each piece, exactly k, ties by lowest index
sparse.py    sparse messages: picked positions (Golomb), and one magnitude per tensor with signs, or values
byte.py      dense messages: every entry as a whole number of 8 bits
kernels.py   all of these on a GPU
"""
