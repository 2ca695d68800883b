"""What a device sends is checked before it is used: names, shapes, types, numbers, and that messages can be decoded.

A simulated client is trusted; a runtime whose clients are elsewhere calls `fault` for each reply, and one with a fault
counts as an absence.

Shape letters: R replies, P shared parameters.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from turnout.errors import Mistake
from turnout.exchange import Assignment
from turnout.experiment import Algorithm
from turnout.layout import Layout
from turnout.parts.compression.base import Sending
from turnout.types import Replies, Tensors

REPORTED = {"loss": True, "finite": False, "bytes_up": False, "bytes_down": False}  # whether it is a float


def fault(
    replies: Replies, asked: Assignment, algorithm: Algorithm, layout: Layout, states: Tensors, sending: Sending
) -> str | None:
    """Why replies cannot be used, in words; None where they can. `states` are the server's, by name."""
    if not torch.equal(replies.client_C, asked.client_R):
        return f"it is of clients {replies.client_C.tolist()[:3]}, and {asked.client_R.tolist()[:3]} were asked"
    rows = len(asked.client_R)
    wanted = {name: states[name] for name in _sent_states(algorithm, layout, states)}
    found = (
        _wrong_rows("states", replies.states, wanted, rows)
        or _wrong_report(replies.report, rows)
        or _not_numbers({"states": replies.states, **replies.sums, "hints": replies.hints}, rows)
    )
    return found or _wrong_message(replies, algorithm, layout, sending)


def _sent_states(algorithm: Algorithm, layout: Layout, states: Tensors) -> list[str]:
    """The names of the states that clients send."""
    own = ("personal/",) if algorithm.share_personal else ()
    prefixes = ("moment/", *own)
    return [name for name in states if name in layout.shared_states or name.startswith(prefixes)]


def _wrong_rows(what: str, rows_by_name: Tensors, wanted: Tensors, rows: int) -> str | None:
    if rows_by_name.keys() != wanted.keys():
        return f"its {what} are {sorted(rows_by_name)[:3]}, not {sorted(wanted)[:3]}"
    for name, like in wanted.items():
        value = rows_by_name[name]
        if tuple(value.shape) != (rows, *like.shape) or value.is_floating_point() != like.is_floating_point():
            return f"its {name} has shape {tuple(value.shape)}, not {(rows, *like.shape)}"
    return None


def _wrong_report(report: Tensors, rows: int) -> str | None:
    for name, is_float in REPORTED.items():
        value = report.get(name)
        if value is None or tuple(value.shape) != (rows,) or value.is_floating_point() != is_float:
            return f"its report has no {name} of one number a client"
    if bool((report["bytes_up"] < 0).any() or (report["bytes_down"] < 0).any()):
        return "it reports a negative number of bytes"
    return None


def _not_numbers(groups: Mapping[str, Tensors], rows: int) -> str | None:
    for group, tensors in groups.items():
        for name, value in tensors.items():
            if len(value) != rows:
                return f"its {group} {name} has {len(value)} rows, not {rows}"
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                return f"its {group} {name} are not all numbers"
    return None


def _wrong_message(replies: Replies, algorithm: Algorithm, layout: Layout, sending: Sending) -> str | None:
    """Decode it once, as the server will."""
    try:
        update_RP: Tensor = algorithm.compression.decode(replies.message, sending, torch.zeros(layout.shared))
    except (Mistake, RuntimeError, KeyError, IndexError, ValueError) as error:
        return f"its message cannot be decoded: {str(error).splitlines()[0][:120]}"
    if tuple(update_RP.shape) != (len(replies.client_C), layout.shared):
        return f"its update has shape {tuple(update_RP.shape)}, not {(len(replies.client_C), layout.shared)}"
    if not bool(torch.isfinite(update_RP).all()):
        return "its update is not a number throughout"
    countable = bool(torch.isfinite(update_RP.square().sum(1)).all())  # in float32 up to 1.8e19
    return None if countable else "its update is longer than can be counted"
