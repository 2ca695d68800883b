"""The simulated world: what a deployment will not let you choose. Everything can be asked for any round, in any order.

participation.py (which clients answer, and how much of the work each finishes) is to be read first, with traces.py and
turnout_log.py as its kinds. log.py has the log of a run as a record. enrolment.py has what is known of clients before
the first round, members.py the set of enrolled clients, events.py joins and leaves, devices/ their speeds, attacks.py
the hostile ones.
"""
