"""Who is a member, and what the objective is over, when clients join late, leave for good or are hardly ever there.

    policy        `Membership`: the settings, and the rules for joining, leaving and being dropped: read this first
    transition    what the rules see (`Outlook`) and what they decide (`Transition`), as values
    roster        what the server remembers of its members between rounds
    departure     paper 000's bounds: whether a client that leaves stays in the objective

server/opening.py applies a transition to the server.
"""
