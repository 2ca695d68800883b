"""Replies that are not numbers: one stops the run with a sentence, or its client counts as absent.

Shape letters: R replies.
"""

from __future__ import annotations

from turnout.errors import UserError
from turnout.types import Replies


def without_bad_numbers(replies: Replies, nonfinite: str, t: int) -> Replies:
    """Replies that are numbers throughout."""
    finite_R = replies.report["finite"]
    if bool(finite_R.all()):
        return replies
    if nonfinite == "absent":
        return replies.take(finite_R.nonzero().squeeze(1))
    bad, loss = replies.client_C[~finite_R].tolist(), float(replies.report["loss"][~finite_R][0])
    raise not_finite("the update", bad, t, loss)


def not_finite(what: str, clients: list[int], t: int, loss: float) -> UserError:
    """What to say where clients have sent something that is not finite."""
    verb = "are" if what.endswith("s") else "is"
    more = f"; {len(clients)} clients in all" if len(clients) > 1 else ""
    return UserError(
        f"{what} of client {clients[0]} in round {t} {verb} not finite (its training loss was {loss:g}{more}): lower "
        "algorithm.local.optimizer.lr, look at that client's data, or set algorithm.nonfinite = 'absent' to go on "
        "without such replies"
    )
