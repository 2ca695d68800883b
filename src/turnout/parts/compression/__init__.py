"""How updates travel: what is sent instead of four bytes a parameter, both ways, with exact bytes.

base.py            the promise of a compression, and `Dense`, which sends everything: read this first
error_feedback.py  what all lossy compressions share: what a message leaves out is added to the next one
ternary.py         paper 001's sparse ternary messages, the largest entries with their values, Algorithm 1 as printed
quantise.py        eight bits an entry
broadcast_log.py   the server's last messages, for clients that were away and must catch up
codec/             rows of numbers as real bytes, and back
"""

from turnout.parts.compression.base import Compression, Dense, Sending

__all__ = ["Compression", "Dense", "Sending"]
