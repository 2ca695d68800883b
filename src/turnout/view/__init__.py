"""What people look at: reports, the live page, trackers, notebooks. Reads records only; the core does not import it."""
