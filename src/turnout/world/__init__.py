"""The simulated world: what a deployment will not let you choose. Everything can be asked for any round, in any order.

participation.py   kinds of participation: which clients answer, and how much of the work each finishes; read this first
traces.py          the eight traces of paper 000, from their published means and deviations
stratified.py      dropping an exact number of clients, spread over groups
turnout_log.py     the log of a run as participation: replayed, or drawn from in blocks (blocks.py)
log.py             such a log as a record; reading and writing turnout.csv
log_statistics.py  statistics of a log, and of draws from it
client_names.py    clients by name or by number, and the clients that are in both a log and the data
enrolment.py       what is known of the clients before the first round, and how a part gets it

members.py         the set of enrolled clients
events/            clients that join and leave: a list, a file or rates, checked, as one calendar

devices/           how fast devices compute, how fast their links are, when they are on
attacks.py         clients that attack

recording.py       measuring a participation trace on this machine; contention.py: its two processes
"""
