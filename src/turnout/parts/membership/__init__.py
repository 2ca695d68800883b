"""The members and the objective when clients join late, leave for good or are rarely present.

    policy        `Membership`: the settings, and the rules for joining, leaving and being dropped: read this first
    transition    the input of the rules (`Outlook`) and their decisions (`Transition`), as values
    roster        what the server remembers of its members between rounds
    departure     paper 000's bounds: whether a client that leaves stays in the objective

server/membership.py applies a transition to the server.
"""
