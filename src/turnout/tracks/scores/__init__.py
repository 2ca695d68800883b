"""The score track (paper 002): clients with labels and models of their own exchange scores on a public set.

settings.py    what a person may choose
tables.py      the server's arithmetic: local update, β, global update, accuracies
round.py       one round, from events to record: read this first
zoo.py         which client uses which architecture when; a trainer and the clients' models for each
training.py    build, early stopping, prediction, distillation
averaging.py   weights averaged among clients of one architecture
runtime.py     clients simulated in this process
track.py       what the loop of experiment.py drives
prepare.py     from an experiment to a track
"""

from turnout.tracks.scores.settings import Distil, EarlyStopping, Scores, Uses, paper_literal

__all__ = ["Distil", "EarlyStopping", "Scores", "Uses", "paper_literal"]
