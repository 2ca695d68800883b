"""Turnout's side of the speed benchmark: the same rounds as the peers', through the library's own round.

What is timed is `run_round`: choosing the cohort, drawing the turnout, laying out the batches, local training,
aggregation and the round's record.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from cases import CHARACTERS, CLASSES, Case, build_model, make_tensors
from side import Clock, Options, State, read_options, report_check, report_times
from torch import Tensor

import turnout as to
from turnout.engine.batches import address_batches
from turnout.parts.selection import Selection
from turnout.round import run_round
from turnout.running.tracks.prepare import prepare
from turnout.server.state import Context
from turnout.world.members import Members


@dataclass(frozen=True)
class NextInLine(Selection):
    """The cohort every side trains in round t."""

    case: Case

    def choose(self, members: Members, t: int, seed: int, state: dict[str, object]) -> Tensor:
        case = self.case
        return ((t * case.cohort + torch.arange(case.cohort)) % case.population).sort().values


def turnout_rounds(options: Options, rounds: int) -> tuple[list[float], State]:
    """Run so many rounds of the case on `options.device`; the milliseconds of each, and the weights at the end."""
    case = options.case
    x_NS, y_NS = make_tensors(case)
    data = held_by_clients(case, x_NS, y_NS)
    if options.check:
        data = held_by_clients(case, *in_turnouts_order(case, data))
    local = to.Local(to.SGD(lr=case.lr), steps=case.steps, batch_size=case.batch)
    experiment = to.Experiment(
        world=to.World(data),
        model=build_model(case, dropout=not options.check),
        algorithm=to.Algorithm(local, selection=NextInLine(case)),
        task=to.tasks.NextCharacter() if case.everywhere else to.tasks.Classification(),
        runtime=to.runtime.InProcess(device=options.device, precision=precision(options), engine=options.engine),
    )
    prepared = prepare(experiment)
    print(prepared.runtime.describe(), flush=True)
    server, clock = prepared.server, Clock(options.device)
    ctx = Context(experiment.algorithm, prepared.runtime, 0)
    clock.start()
    for t in range(rounds):
        server = run_round(server, t, ctx).after
        clock.lap()
    return clock.laps, prepared.model.layout.unpack(server.shared_P)


def precision(options: Options) -> str:
    """On a GPU matrix products in TF32, as torch's own convolutions (and so the peers') are by default."""
    return "tf32" if options.device == "cuda" and not options.check else "float32"


def held_by_clients(case: Case, x_NS: Tensor, y_NS: Tensor) -> to.data.Own:
    """The samples as a data set of Turnout's."""
    owner = torch.arange(case.population).repeat_interleave(case.samples)
    classes = CHARACTERS if case.everywhere else CLASSES
    return to.data.Own(x_NS.flatten(0, 1), y_NS.flatten(0, 1), owner, test_share=0.0, classes=classes)


def in_turnouts_order(case: Case, data: to.data.Own) -> tuple[Tensor, Tensor]:
    """Samples placed so that Turnout's addressed order of round 0 visits them as the other sides do."""
    clients = torch.arange(case.population)
    samples = data.load(0).train(clients, 0)
    steps = torch.full((case.population,), case.steps)
    order_R = address_batches(samples, clients, steps, case.batch, False, 0, 0).row_cJB.flatten()
    x, y = torch.empty_like(data.x), torch.empty_like(data.y)
    x[order_R], y[order_R] = data.x, data.y
    shape = (case.population, case.samples)
    return x.view(*shape, *case.input_shape), y.view(*shape, *y.shape[1:])


if __name__ == "__main__":
    given = read_options("Time rounds of Turnout.")
    laps, state = turnout_rounds(given, 1 if given.check else given.warmup + given.rounds)
    if given.check:
        report_check("turnout", given, state)
    else:
        report_times("turnout", given, laps)
