"""Who is there: what a deployment will not let you choose. Everything here can be asked for any round, in any order.

participation.py   kinds of participation: who answers, and how much of the work each finishes; read this first
traces.py          the eight traces of paper 000, from their published means and deviations
on_off.py          clients that go up and down as Markov chains
stratified.py      dropping an exact number of clients, spread over groups
fleet_log.py       the log of a real fleet as participation: replayed, or drawn from
fleet/             reading any fleet's log, looking at it, modelling it
turnout_csv.py     writing such a log
client_names.py    clients by name or by number
enrolment.py       what is known of the clients before the first round, and how a part asks for it

members.py         the set of enrolled clients
events/            who joins and leaves when: a list, a file or rates, checked, as one calendar

devices/           how fast devices compute, how fast their links are, when they are on; rounds in time
attacks/           clients that do not do what they say

recording.py       measuring a participation trace on this machine
contention.py      the two processes of such a measurement

May import the root's values and machine.
"""
