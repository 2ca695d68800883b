"""The members and the objective when clients join late, leave for good or are rarely present.

    policy        `Membership`: the settings, and the rules for joining, leaving and being dropped: read this first
    roster        what the server remembers of its members between rounds, and the effects of joins and leaves
    departure     paper 000's bounds: whether a client that leaves stays in the objective

server/membership.py applies the decisions to the server.
"""
