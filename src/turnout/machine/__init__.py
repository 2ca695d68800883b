"""This computer: files, locks, threads, memory, time, compiler.

files.py         files written in one step; the user's cache folder
checksums.py     files that carry a checksum of their content
lock.py          a folder for one process at a time, and which process holds it
threads.py       cores, an ordered thread-pool map, child processes
memory.py        free memory, freed memory, copies to a GPU
profiling.py     seconds by stage of the work
activity.py      which clients a round is waiting for
terminal.py      a console that shows any text safely
optional.py      libraries that only some features need
compiler.py      C functions, compiled once for this machine
triton_tools.py  Triton if it is installed, and kernels compiled side by side

May import nothing of the library but errors.
"""
