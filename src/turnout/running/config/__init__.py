"""Experiments as files, and settings as people write them: everything here follows from the dataclasses' type hints.

kinds.py       the roles, where their parts announce their kinds, and how a kind is found by name: read this first
dotted.py      whose code a file may name by a dotted path, and how such a name is looked up
hints.py       type hints, taken apart: what a setting may be, in words, and whether a value is that
text.py        TOML texts as tables
read.py        from a file or a command line to an experiment, with a sentence for everything that cannot be
variants.py    the `[variants.NAME]` tables of a file: several experiments from one
misplaced.py   what somebody meant by a setting that is not where it was written
write.py       from an experiment to a file
read_back.py   whether the file of a run gives its experiment back
check.py       whether settings made in Python are of the types they should be
catalogue.py   what there is to choose from: `turnout list`, docs/parts.md, the comments of `turnout init`

It may import the settings of everything an experiment is made of: world, data, models, parts, experiment.py, and the
settings.py of runtimes and tracks. Recipes, runs and the command line import it.
"""
