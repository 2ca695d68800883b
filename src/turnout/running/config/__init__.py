"""Experiments as files, and settings as people write them: everything here follows from the dataclasses' type hints.

kinds.py       the roles, where their kinds are defined, and finding one by name: read this first
dotted.py      whose code a file may name by a dotted path, and how such a name is looked up
hints.py       type hints: what a setting may be, in words, and whether a value fits
write.py       from an experiment to a file
catalogue.py   what there is to choose from, as lists and comments
read.py        from a file to an experiment, with a sentence for everything that cannot be read
variants.py    changed experiments: single settings of a command line, the `[variants.NAME]` tables of a file
run_file.py    a run's own file: does it give the experiment back, and are a resumed run's settings the same?
"""
