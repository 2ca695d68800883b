"""Differential privacy of clients that take part at most k times, at least b rounds apart.

private.py        the part: clip each contribution, sum, noise
noise.py          the noise as a stream
discrete.py       the noise that devices add to secure sums
ledger.py         who took part when, and what the participation that happened reveals
factorisation.py  noise that is correlated between rounds, and what one client can move
accountant.py     ε of Gaussian noise, and the noise for an ε
"""
