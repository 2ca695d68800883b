"""How updates are sent: instead of four bytes per parameter, both ways, with exact bytes.

base.py   the promise of a compression, and `Dense`, which sends everything: read this first
lossy.py  sparse ternary messages, the largest entries with their values, eight bits per entry: the residual of a
          message is added to the next one; the server's last messages, for clients that were away
codec/    rows of numbers as real bytes, and back
"""

from turnout.parts.compression.base import Compression, Dense, Sending

__all__ = ["Compression", "Dense", "Sending"]
