"""This computer: files, locks, threads, memory, time, compiler.

files.py     files written in one step
terminal.py  a console that shows texts as they are
sealed.py    files with a checksum
lock.py      a folder for one process at a time, and who it is
parent.py    processes that end with the one that started them
threads.py   cores, and an ordered, bounded thread-pool map
clock.py     seconds by stage of the work
memory.py    free memory, and memory that is kept for the next round
transfer.py  copies to a GPU that nobody waits for; triton_tools.py: Triton if it is installed
rehearsal.py Triton's kernels compiled side by side
cache.py     the user's cache folder
script.py    processes that do not run the user's script again
optional.py  libraries that only some features need
compiler.py  C functions, compiled once for this machine

May import nothing of the library but errors.
"""
