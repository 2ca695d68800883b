"""Differential privacy of clients that take part at most k times, at least b rounds apart.

accountant.py     ε of Gaussian noise, and the noise for an ε
factorisation.py  noise that is correlated between rounds, and what one client can move
"""
