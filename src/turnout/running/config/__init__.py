"""Experiments as files, and settings as people write them: everything here follows from the dataclasses' type hints.

kinds.py       the roles, and where their kinds are defined: read this first
dotted.py      whose code a file may name by a dotted path, and how such a name is looked up
hints.py       type hints: what a setting may be, in words, and whether a value fits
write.py       from an experiment to a file
catalogue.py   what there is to choose from, finding a kind by name, and hints for wrong names
read.py        from a file or a command line to an experiment, with a sentence for everything that cannot be read
variants.py    the `[variants.NAME]` tables of a file: several experiments from one
run_file.py    a run's own file: does it give the experiment back, and are a resumed run's settings the same?
"""
