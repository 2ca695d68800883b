"""Trackers: where else the numbers of a run are shown while it goes on: TensorBoard, MLflow, W&B, or one's own.

tracker.py      what a tracker promises, and how one is named in a file or on the command line: read this first
numbers.py      a round as numbers with names, from the run itself or from its records
tensorboard.py  event files
mlflow.py       a run on an MLflow server, or in a folder
wandb.py        a run at Weights & Biases
replay.py       what the records hold, told to a tracker afterwards

A tracker hears of finished rounds from whoever drives them (running/tracking.py); the round knows nothing of it. The
libraries are loaded when a tracker is made. May import records, report, config and what is below them.
"""
