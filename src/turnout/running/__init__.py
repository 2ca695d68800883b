"""Running: from an experiment to a folder with its records, one run or many.

loop.py        rounds, evaluations, records and checkpoints of one run: read this first
stop_rules.py  when to stop before the last round
folder.py      the run folder: its name, whether it may be used, its lock, deleting the run in it
state.py       the state of run folders, lists of runs, stopping one
plan.py        which runs are made together, and where; the arguments of `to.run`
runs.py        `run` one experiment or several, times seeds; run a plan of them, or resume it
messages.py    a run as a stream of messages, in this process
side_by_side.py  several at a time, in processes of their own
display.py     these messages on the terminal, or in a notebook
tracking.py    trackers and a callback that receive finished rounds; hooks: what the caller of a run adds to it
result.py      a run afterwards: curves, report, model; and groups of runs
trained.py     the trained model of a run: tensors, a module, a file (weights, torch.export, ONNX); its predictions
adapter_files.py  a trained adapter as peft reads it, or merged into its base
checking.py    verifying the files of a run
profile.py     seconds by stage of the round
config/        experiments as files; records/: what a run writes; tracks/: what is federated
"""
