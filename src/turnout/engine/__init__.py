"""Local training of many clients at once: the same arithmetic by hand, under `vmap`, or one client at a time."""
