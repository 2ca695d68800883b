"""The arithmetic of comparisons, from closed forms and without further libraries; it knows nothing of runs.

paired.py         numbers by seed: differences, mean and interval
distributions.py  Student's t, the sign test, rank correlation; how many seeds would decide
comparison.py     several methods against the best of them, corrected for how many they are

May import only what is at the root.
"""
