"""A round in time: how `world.devices` turns bytes and steps into seconds, and seconds into the turnout.

Participation decides which clients turn up and how much work each would do; devices decide how long that takes; the
closing decides when the server stops waiting. All three are combined here, when the turnout is drawn and before any
client trains, so that only work that counts is trained. This needs three numbers in advance:

- Downloaded bytes are known: the shared parameters, or the messages that a client missed (`compression.catch_up`, from
  the model it holds), states, and what terms broadcast. The records have the same number. Messages from terms to
  clients travel with the next download and take no time here.
- Training time is the number of samples in the steps taken, divided by the speed of the device for this model: three
  times the operations of one forward pass, counted; or the samples per second that a user has measured.
- Uploaded bytes are known if the encoding has a fixed length (dense, eight bits). If the length depends on the values
  (sparse messages), a device plans with the longest possible message (`compression.longest`): with a deadline it stops
  training when there is just enough time left to send that. This bound decides which clients are late; the seconds in
  the records are those of the bytes that were sent.

Absent: does not turn up. Late: asked and working, but the reply arrives after the round is closed, or never, because
not even one step fits. A late client is not trained at all, unless the closing uses its reply later.

Shape letters: C clients of the cohort.
"""

from __future__ import annotations

import copy
import heapq
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from turnout.clients.state import initial_moments, initial_shared
from turnout.exchange import Download, RoundTiming
from turnout.experiment import Algorithm
from turnout.inputs import call
from turnout.parts.closing import IDLE, close
from turnout.parts.compression.base import Sending
from turnout.parts.local import turnout_of
from turnout.parts.terms.base import sends
from turnout.rng import uniform
from turnout.runtimes.setup import Model, Setup
from turnout.types import Replies, Times, Turnout, row_bytes, wire_bytes
from turnout.world.devices import Devices
from turnout.world.devices.device_draw import Pace, Passes

TRAINING = 3  # a forward and a backward pass are about three forward passes


def flops_of_sample(model: Model, x: Tensor) -> float:
    """Operations to train on one sample; two per parameter if torch cannot count those of the layers.

    >>> import torch.nn as nn
    >>> from turnout.layout import lay_out
    >>> line = nn.Linear(60, 10)
    >>> flops_of_sample(Model(line, lay_out(line, None), torch.zeros(610), {}), torch.zeros(1, 60))
    3600.0
    """
    module = copy.deepcopy(model.module).cpu().eval()
    x = x.cpu().to(next(module.parameters()).dtype) if x.is_floating_point() else x.cpu()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        call(module, x[:1])
    return TRAINING * float(counter.get_total_flops() or 2 * model.layout.width)


@dataclass(frozen=True)
class Timing:
    """What the times of all rounds have in common.

    devices      the clients' devices
    algorithm    the parts
    seed         of the experiment
    flops        operations to train on one sample
    beside       bytes that a client sends beside its update
    sending      circumstances of a message
    drop_single  whether a last batch of one sample is dropped
    """

    devices: Devices
    algorithm: Algorithm
    seed: int
    flops: float
    beside: int
    sending: Sending
    drop_single: bool

    @classmethod
    def of(cls, setup: Setup, devices: Devices) -> Timing:
        algorithm, model, seed = setup.algorithm, setup.model, setup.experiment.seed
        federation, layout = setup.data, model.layout
        held = next(c for c in range(federation.clients) if int(federation.examples(torch.tensor([c]))[0]) > 0)
        x, _ = federation.train(torch.tensor([held]), 0).of(0, most=1)
        shared_P = model.flat_P[: layout.shared]
        states = {name: model.states[name] for name in layout.shared_states}
        states |= initial_moments(layout, shared_P, algorithm)
        states |= initial_shared(layout, model.flat_P, model.states, algorithm)
        hints = algorithm.substitution.hints(torch.zeros(1, layout.shared), 0, seed)
        sums = sum(sends(term) for term in algorithm.terms) * layout.shared
        return cls(
            devices=devices,
            algorithm=algorithm,
            seed=seed,
            flops=flops_of_sample(model, x),
            beside=wire_bytes(states) + row_bytes(hints) + int(4 * sums),
            sending=Sending(0, seed, torch.empty(0, dtype=torch.int64), layout.shared_slots),
            drop_single=model.batch_statistics,
        )

    def planned_bytes(self, t: int) -> int:
        """Bytes that a device plans to send: the longest message, and what it sends beside the update."""
        return self.algorithm.compression.longest(replace(self.sending, t=t)) + self.beside

    def turn_out(
        self, client_C: Tensor, steps_C: Tensor, examples_C: Tensor, download: Download, held: Replies
    ) -> tuple[Turnout, Tensor]:
        """The turnout with its times, and the steps of each client, given the steps that participation allows.

        `held`: the clients' reports about the model they hold. A late client has the work that it would have done.
        """
        t, timing, closing = download.t, download.timing(), self.algorithm.closing
        draw = self.devices.draw(client_C, t, self.seed)
        passes = Passes.of(examples_C, self.algorithm.local.batch_size, self.drop_single)
        down_C = (download.owed(client_C, held.message.tensors) + held.report["bytes_down"]).double()
        planned = self.planned_bytes(t)
        up_C = torch.full_like(down_C, planned)
        pace = Pace.of(draw, down_C, up_C, self.flops, passes)
        full_C = self.algorithm.local.full_steps(examples_C, self.drop_single)
        never_C = torch.zeros_like(steps_C, dtype=torch.bool)
        if closing.partial:
            fit_C = torch.minimum(steps_C, pace.steps_by(torch.full_like(up_C, timing.limit)))
            never_C = (fit_C == 0) & (steps_C > 0)
            steps_C = torch.where(never_C, steps_C, fit_C)
        train_C = pace.train_C(steps_C)
        total_C = pace.download_C + train_C + pace.upload_C
        arrival_C = torch.where(never_C | (steps_C == 0), torch.inf, total_C)
        begin_C, closes, in_time_C = self._order(client_C, arrival_C, timing, t)
        steps_C = torch.where(torch.isnan(begin_C), 0, steps_C)
        there_C = steps_C > 0
        late_C = there_C & ~in_time_C

        def known(value_C: Tensor) -> Tensor:
            return torch.where(there_C, value_C, torch.nan)

        times = Times(
            begin_C=known(begin_C),
            download_C=known(pace.download_C),
            train_C=known(train_C),
            # A client that never replies uploads nothing: its upload is endless, until the round is closed.
            upload_C=known(torch.where(never_C & late_C, torch.inf, pace.upload_C)),
            bytes_down_C=known(down_C),
            late_C=late_C,
            up_C=draw.up_C,
            tier_C=draw.tier_C,
            closes=closes,
            planned_up=planned,
            tiers=self.devices.tiers,
        )
        if bool(in_time_C.any()):
            last = float(times.arrival_C[in_time_C].max())
            times = replace(times, ends_with_last=last >= closes - 1e-9)
        return replace(turnout_of(client_C, steps_C, full_C, self.algorithm.local), times=times), steps_C

    def _order(self, client_C: Tensor, total_C: Tensor, timing: RoundTiming, t: int) -> tuple[Tensor, float, Tensor]:
        """When each client begins (NaN: it is not asked), when the round closes, and which replies arrive by then."""
        closing = self.algorithm.closing
        if closing.buffer is None:
            closes, in_time_C = close(total_C, timing.limit, closing.enough(len(total_C)))
            return torch.zeros_like(total_C), closes, in_time_C
        place_C = uniform(self.seed, "order", t, ids=client_C)
        if timing.drawn is not None:
            place_C = torch.where(torch.isin(client_C, timing.drawn), place_C, place_C + 1)
        order_C = place_C.argsort()
        asked = zip(client_C[order_C].tolist(), total_C[order_C].tolist(), strict=True)
        waiting = [(client, seconds) for client, seconds in asked if math.isfinite(seconds)]
        flying = list(zip(timing.client_F.tolist(), (timing.arrival_F - timing.now).tolist(), strict=True))
        begin, arrived, closes = buffered(flying, waiting, timing.seats, closing.buffer)
        begin_C = torch.tensor([begin.get(client, math.nan) for client in client_C.tolist()], dtype=total_C.dtype)
        return begin_C, closes, torch.isin(client_C, torch.tensor(arrived, dtype=torch.int64))


def buffered(
    flying: list[tuple[int, float]], waiting: list[tuple[int, float]], seats: int, size: int
) -> tuple[dict[int, float], list[int], float]:
    """An asynchronous step of `size` replies: when each client begins, which replies arrive, and when the last does.

    flying   (client, time of arrival) of replies in flight; a negative time is in the past
    waiting  (client, seconds of its work) in the order in which clients are asked when a seat is free

    >>> buffered([(2, 4.0)], [(7, 3.0), (8, 2.0), (9, 1.0)], seats=1, size=2)
    ({7: 0.0, 8: 3.0}, [7, 2], 4.0)
    """
    begin: dict[int, float] = {}
    arrivals = [(seconds, client) for client, seconds in flying]
    heapq.heapify(arrivals)
    queue = iter(waiting)

    def ask(at: float) -> None:
        if (following := next(queue, None)) is not None:
            client, seconds = following
            begin[client] = at
            heapq.heappush(arrivals, (at + seconds, client))

    for _ in range(max(0, seats)):
        ask(0.0)
    arrived: list[int] = []
    closes = IDLE
    while arrivals and len(arrived) < size:
        at, client = heapq.heappop(arrivals)
        arrived.append(client)
        closes = max(0.0, at)
        if len(arrived) < size:
            ask(closes)
    return begin, arrived, closes
