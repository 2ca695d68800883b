"""Studies: published tables and figures, run again, and whether their claims hold.

study.py        what a study is: experiments, rows, claims, pictures: read this first
claims.py       how a claim is decided, with the arithmetic of turnout.statistics
running.py      run a study: its parts one after another, resumable; so_far.py: what one has that was cut off
tables.py       findings as a table or as Markdown; drawing.py: as pictures
published.py    the papers' own numbers
catalogue.py    all studies by name

participation.py bias.py arrivals.py reboot_radius.py departures.py  paper 000
elastic.py noniid.py low_participation.py bmta.py bytes.py           paper 001 (efl.py: what they share)
labels.py                                                            paper 002 (label_numbers.py, label_pictures.py)
friends.py friend_discovery.py friend_cost.py                        paper 003 (friend_cases.py: what they share)
adam.py personal.py gradients.py activations.py testbed.py           paper 004
together.py                                                          all papers (traffic.py: accuracy against bytes)
deadline.py attacks.py                                               our own questions (attack_cases.py)

May import everything but the command line.
"""
