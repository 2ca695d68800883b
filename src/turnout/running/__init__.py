"""Running: from an experiment to a folder with its records, one run or many.

loop.py        rounds, evaluations, records and checkpoints of one run: read this first
stop_rules.py  when to stop before the last round
folder.py      the run folder: its name, whether it may be used, its lock, deleting the run in it
state.py       the state of run folders, lists of runs, stopping one
result.py      a run afterwards: curves, report, model; and groups of runs
plan.py        which runs are made together, and where; the arguments of `to.run`
runs.py        `run` one experiment or several, times seeds
planned.py     a plan of several: run it, resume it, or read what has ended of it
messages.py    runs as streams of messages, in this process
side_by_side.py  several at a time, in processes that share the machine's memory
memory.py      whether a run fits this machine, alone or beside others
display.py     these messages on the terminal, or in a notebook
tracking.py    trackers and a callback that receive finished rounds
reported.py    hooks: what the caller of a run adds to it; warnings about runs that have ended
checking.py    verifying the files of a run
trained.py     the trained model of a run: tensors, a module, or a file (weights, TorchScript, torch.export, ONNX)
prediction.py  predictions of a run's model for the rows of a table
observed_times.py  a run's recorded times as devices; this machine's training speed
profile.py     seconds by stage of the round
config/        experiments as files; records/: what a run writes; tracks/: what is federated
"""
