"""This computer: files, checksums, locks, threads, memory, time, tables, terminal, compilers. Imports only errors."""
