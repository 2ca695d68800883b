"""Running: from an experiment to a folder with its records, one run or many.

loop.py        rounds, evaluations, records and checkpoints of one run: read this first
stop_rules.py  when to stop before the last round
used.py        a folder that holds a run already: the choices, and deleting it
folder.py      the run folder: its name, whether it may be used, its lock
result.py      what can be had from a run afterwards: curves, report, model; and from several
given.py       what `to.run` was given: experiments by name, seeds
plan.py        which runs are made together, and where
tracking.py    trackers and a callback that hear of finished rounds
state.py       how a run folder is doing: running, finished, interrupted, failed
stopping.py    asking the process that works in a folder to stop
listing.py     which runs are in a folder, and how they are doing
runs.py        `run` one experiment or several, `run_many` variants and seeds
planned.py     a plan of several: run, gone on with, or read as far as it got
reported.py    report, picture and warnings of what has ended
messages.py    runs as streams of messages, in this process
side_by_side.py  several at a time, which share the machine's memory
worker.py      a process that takes one run after another
display.py     these messages on the terminal
notebook.py    the same in a notebook, updated in place
frames.py      records as tables of pandas
trained.py     the trained values of a run: tensors by name, or the module with them
model_files.py a trained model as a file: weights, TorchScript, torch.export, ONNX
prediction.py  what a run's model says of the rows of a table
observed_times.py  a run's recorded times as devices
training_speed.py  how many samples a second this machine trains on
memory.py      whether a run fits this machine, alone or beside others
profile.py     seconds by stage of the round

May import tracks, records, report, trackers, config and what is below them; not recipes, studies or the command line.
"""
