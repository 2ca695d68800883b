"""What clients had to download in a round: the model, or what they missed of it, states, and what terms broadcast.

Shape letters: C clients of the cohort, R replies.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from turnout.exchange import Download, Runtime
from turnout.experiment import Algorithm
from turnout.machine.profiling import stage
from turnout.parts.compression.base import Dense, Sending
from turnout.server.state import Server
from turnout.types import Replies, Tensors, Turnout, wire_bytes


def fetched(
    server: Server, algorithm: Algorithm, runtime: Runtime, download: Download, turnout: Turnout,
    replies: Replies | None, sending: Sending,
) -> Tensor:  # fmt: skip
    """The bytes each of the cohort had to download, NaN for the absent.

    Who turns up has downloaded, also where its work does not count (scheme A: it did not finish). An absent client has
    not: it was asked in vain.
    """
    fetched_C = torch.full((len(turnout.client_C),), torch.nan, dtype=torch.float64)
    heard, silent_C = [] if replies is None else [replies], turnout.present_C
    if replies is not None:
        silent_C = silent_C.index_fill(0, torch.searchsorted(turnout.client_C, replies.client_C), False)
    if bool(silent_C.any()):
        heard.append(runtime.unfinished(turnout.client_C[silent_C], download))
    for group in heard:
        with stage("broadcast"):
            owed_R = owed_bytes(server, algorithm, download, sending, group.client_C, group.message.tensors)
        bytes_R = owed_R + group.report["bytes_down"]
        fetched_C.index_copy_(0, torch.searchsorted(turnout.client_C, group.client_C), bytes_R.double())
    return fetched_C


def owed_bytes(
    server: Server, algorithm: Algorithm, download: Download, sending: Sending, client_I: Tensor, held: Tensors
) -> Tensor:
    """What brings clients up to date that hold something already: the model, or what they missed of it, and states."""
    way_down = algorithm.compression if download.start_CP is None else Dense()  # nobody else has such a row
    model_I = way_down.catch_up(server.compression, held, replace(sending, client_C=client_I))
    return model_I + wire_bytes(download.states)
