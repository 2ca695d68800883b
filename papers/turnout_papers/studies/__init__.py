"""Studies: published tables and figures, run again, and whether their claims hold.

study.py      what a study is: experiments, rows, claims, pictures: read this first
claims.py     how a claim is decided, with the arithmetic of turnout.statistics
running.py    run a study: its parts one after another, resumable; all studies by name
tables.py     findings as a table or as Markdown; drawing.py: as pictures, also of accuracy against bytes
published.py  the papers' own numbers

participation.py bias.py arrivals.py reboot_radius.py departures.py  flexible participation
elastic.py noniid.py low_participation.py bmta.py bytes.py           EFL (efl.py: what they share)
labels.py                                                            labels and models that differ
friends.py friend_discovery.py friend_cost.py                        FDMS
adam.py personal.py gradients.py activations.py testbed.py           MTFL
together.py                                                          all of them
fedavg.py fedprox.py scaffold.py fedbuff.py pfllib.py                other people's tables
deadline.py attacks.py privacy.py adapters.py                        our own questions

May import everything but the command line.
"""
