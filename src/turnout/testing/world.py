"""Checks of the world's parts: participation, events, attacks, devices and selection; data, models and tasks.

Shape letters: S samples, C clients, B samples of a batch.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from turnout.data.federation import DataSpec
from turnout.data.partition import Partition
from turnout.data.sizes import Sizes
from turnout.inputs import scores_of
from turnout.models.layers import ModelSpec
from turnout.parts.selection import Selection
from turnout.tasks import TaskSpec
from turnout.testing.examples import (
    ROUNDS,
    all_finite,
    checkpointed,
    copied,
    example_applied,
    example_enrolment,
    example_turnouts,
    expect,
    expect_part,
    unchanged,
)
from turnout.types import Turnout
from turnout.world.attacks import Attack, Attackers
from turnout.world.devices import Devices
from turnout.world.enrolment import tied
from turnout.world.events import Events, EventSetting, calendar_of
from turnout.world.members import Members
from turnout.world.participation import Participation, raised


def check_participation(
    participation: Participation, full_work: int = 5, clients: int = 40, alone: bool = True
) -> None:
    """Promises of a participation: float64 fractions in [0, 1] that depend neither on the order in which rounds are
    drawn nor on other clients. `alone=False` for one that divides the cohort as a whole, as `Stratified` does. The
    clients are in two groups."""
    expect_part(participation, Participation)
    participation = tied(participation, example_enrolment(clients), ROUNDS, "check_participation")
    client_C, some_c, groups = torch.arange(clients), torch.arange(1, clients, 3), torch.arange(clients) % 2
    try:
        first = [participation.fraction(client_C, t, full_work, 0, groups) for t in range(ROUNDS)]
    except Exception as error:  # any failure of a user's part
        raise AssertionError(str(raised(participation, error))) from error
    for t in (3, 1, 0, 2):
        again = participation.fraction(client_C, t, full_work, 0, groups)
        expect(again.shape == client_C.shape, f"fraction: one number per client, not {tuple(again.shape)}")
        expect(again.dtype == torch.float64, f"fraction: numbers in float64, not {again.dtype}")
        expect(torch.equal(again, first[t]), f"fraction: round {t} must not depend on which rounds were drawn before")
        wrong = again[~((again >= 0) & (again <= 1))].tolist()
        expect(not wrong, f"fraction: in [0, 1], round {t} has {', '.join(f'{value:g}' for value in wrong[:5])}")
        if alone:
            some = participation.fraction(some_c, t, full_work, 0, groups)
            expect(torch.equal(some, again[some_c]), f"fraction: in round {t} a client depends on other clients")


def check_devices(devices: Devices, clients: int = 40) -> None:
    """Promises of devices: finite speeds above 0 in float64, tiers with names; numbers depend neither on the order in
    which rounds are drawn nor on other clients."""
    expect_part(devices, Devices)
    devices = tied(devices, example_enrolment(clients), ROUNDS, "check_devices")
    client_C, some_c = torch.arange(clients), torch.arange(1, clients, 3)
    first = [devices.draw(client_C, t, 0) for t in range(ROUNDS)]
    for t in (3, 1, 0, 2):
        again, some = devices.draw(client_C, t, 0), devices.draw(some_c, t, 0)
        for name in ("compute_C", "down_C", "up_C", "latency_C"):
            value_C = getattr(again, name)
            right = value_C.shape == client_C.shape and value_C.dtype == torch.float64
            expect(right, f"draw: {name} has one float64 per client, not {tuple(value_C.shape)} of {value_C.dtype}")
            lowest = 0 if name == "latency_C" else torch.finfo(torch.float64).tiny
            right = bool((torch.isfinite(value_C) & (value_C >= lowest)).all())
            expect(right, f"draw: {name} is finite and above 0, round {t} has {value_C.tolist()[:3]}")
            expect(torch.equal(value_C, getattr(first[t], name)), f"draw: round {t} must not depend on earlier draws")
            same = torch.equal(getattr(some, name), value_C[some_c])
            expect(same, f"draw: in round {t} a device depends on other clients")
        known = bool(((again.tier_C >= 0) & (again.tier_C < len(devices.tiers))).all())
        expect(known, f"draw: a tier is a place in tiers, which has {len(devices.tiers)}")


def check_selection(selection: Selection, clients: int = 40) -> None:
    """Promises of a selection: sorted members, each once, the same for the same round, seed and state; a checkpoint can
    hold the state, and `choose` does not change it."""
    expect_part(selection, Selection)
    selection = tied(selection, example_enrolment(clients), ROUNDS, "check_selection")
    members, state = Members(clients).leave(3), checkpointed(selection.begin(), "begin")
    for t in range(ROUNDS):
        before = copied(state)
        chosen_C = selection.choose(members, t, 0, state)
        again_C = selection.choose(members, t, 0, state)
        expect(torch.equal(chosen_C, chosen_C.unique()), f"choose: sorted ids, each once, not {chosen_C.tolist()}")
        expect(bool(members.which(chosen_C).all()), f"choose: members only, not {chosen_C.tolist()}")
        expect(torch.equal(chosen_C, again_C), "choose: the same for the same round and seed")
        expect(unchanged(state, before), "choose: must not change the state")
        work_C = (torch.arange(len(chosen_C)) % 2 == 0).double()  # every other client replies, with all of the work
        turnout = Turnout(chosen_C, work_C, 1.0, work_C, torch.ones_like(work_C))
        client_R, share_C = chosen_C[work_C > 0], torch.full_like(work_C, 1 / max(1, len(chosen_C)))
        applied = example_applied(torch.ones(len(client_R), 4), client_R, turnout, share_C, torch.zeros(4), t)
        state = checkpointed(selection.observe(state, applied), "observe")


def check_events(events: Events, clients: int = 40) -> None:
    """Promises of an entry of `World.events`: possible, repeatable, independent of the number of rounds; random events
    do not touch clients that other entries name."""
    expect_part(events, Events)
    setting = EventSetting(clients, None, rounds=30, seed=0)
    first, longer = (calendar_of([events], replace(setting, rounds=rounds)) for rounds in (30, 60))
    again = calendar_of([events], setting)
    expect(torch.equal(first.outside_L, longer.outside_L), "events: the clients outside at first depend on the rounds")
    for t in range(30):
        now, then, later = (calendar.by_round.get(t, ()) for calendar in (first, again, longer))
        expect(now == then, f"events: round {t} is not the same the second time")
        expect(now == later, f"events: round {t} depends on how many rounds follow")
    if events.drawn:
        named = frozenset(range(clients // 2))
        planned = events.events(replace(setting, named=named))
        touched = named & ({int(event.client) for event in planned.events} | set(planned.outside))
        expect(not touched, f"events: clients {sorted(touched)} are drawn, though other entries name them")


def check_attack(attack: Attack, width: int = 6) -> None:
    """Promises of an attack: finite numbers, the same for the same round; honest clients are not changed; without
    collusion it reads its own update only; absent clients stay absent, and no client claims more work than asked."""
    expect_part(attack, Attack)
    client_R, clean_RP = torch.arange(5), torch.randn(5, width, generator=torch.Generator().manual_seed(0))
    both, alone = (Attackers(torch.tensor(ids), (attack,), seed=0) for ids in ([1, 3], [3]))
    sent_RP = both.sent(clean_RP.clone(), client_R, 2)
    expect(bool(torch.isfinite(sent_RP).all()), "update: finite numbers")
    expect(torch.equal(sent_RP, both.sent(clean_RP.clone(), client_R, 2)), "update: the same for the same round")
    expect(torch.equal(sent_RP[[0, 2, 4]], clean_RP[[0, 2, 4]]), "update: honest clients must not be changed")
    if not attack.colludes:
        by_itself_P = alone.sent(clean_RP[3:4].clone(), client_R[3:4], 2)[0]
        expect(torch.allclose(by_itself_P, sent_RP[3]), "update: without collusion it depends on its own update only")
    turnout, _ = list(example_turnouts())[1]
    claimed = Attackers(turnout.client_C, (attack,), seed=0).claimed_work(turnout)
    expect(torch.equal(claimed.present_C, turnout.present_C), "work: absent clients stay absent, present ones present")
    expect(bool((claimed.work_C <= turnout.full_work).all()), "work: at most what was asked")
    examples_C = both.claimed_examples(client_R, torch.tensor([3, 4, 0, 6, 9]))
    expect(examples_C.dtype == torch.int64 and bool((examples_C >= 0).all()), "examples: whole numbers, not negative")
    expect(examples_C[[0, 2, 4]].tolist() == [3, 0, 9], "examples: honest clients report their own")


# -- data, models, tasks


def check_partition(partition: Partition, clients: int = 10) -> None:
    """Promises of a partition: at least one row for each client, no row twice, the same again; where sizes are given,
    no client gets more."""
    expect_part(partition, Partition)
    label_S, owner_S = torch.arange(600) % 10, torch.arange(600) // 30
    rows_C, again_C = (partition.split(label_S, owner_S, clients, 0) for _ in range(2))
    want_C = 4 + torch.arange(clients)
    fewer_C = partition.split(label_S, owner_S, clients, 0, want_C)
    for given_C in (rows_C, fewer_C):
        expect(len(given_C) == clients, f"split: rows for {clients} clients, not for {len(given_C)}")
        whole = all(rows.dtype == torch.int64 and len(rows) for rows in given_C)
        expect(whole, "split: whole numbers (int64), at least one for each client")
        every = torch.cat(list(given_C))
        expect(len(every) == len(every.unique()), "split: no sample belongs to two clients, or twice to one")
        expect(bool(((every >= 0) & (every < len(label_S))).all()), f"split: rows are 0 to {len(label_S) - 1}")
    expect(all(torch.equal(a, b) for a, b in zip(rows_C, again_C, strict=True)), "split: the same for the same seed")
    found = [len(rows) for rows in fewer_C]
    expect(all(n <= int(want) for n, want in zip(found, want_C, strict=True)), f"split: {want_C} wanted, {found} given")


def check_sizes(sizes: Sizes, clients: int = 40) -> None:
    """Promises of sizes: at least one sample each, int64; a client's size does not depend on other clients."""
    expect_part(sizes, Sizes)
    client_C, some_c = torch.arange(clients), torch.arange(1, clients, 3)
    size_C = sizes.draw(client_C, 0)
    expect(size_C.dtype == torch.int64 and size_C.shape == client_C.shape, "draw: one whole number (int64) per client")
    expect(bool((size_C >= 1).all()), f"draw: at least one sample each, not {size_C.tolist()}")
    expect(torch.equal(sizes.draw(some_c, 0), size_C[some_c]), "draw: a client's size depends on other clients")


def check_data(data: DataSpec) -> None:
    """Promises of a data set: the same for the same seed; samples of one shape, as many as reported, labels in range;
    a client's samples do not depend on other clients."""
    expect_part(data, DataSpec)
    federation, again = data.load(0, None), data.load(0, None)
    expect(federation.fingerprint() == again.fingerprint(), "load: the same data for the same seed")
    client_C = torch.arange(min(federation.clients, 5))
    samples, count_C = federation.train(client_C, 0), federation.examples(client_C)
    expect(torch.equal(samples.count_C, count_C), f"examples: {count_C.tolist()}, but train has {samples.count_C}")
    for i, client in enumerate(client_C.tolist()):
        x, y = samples.of(i)
        expect(tuple(x.shape[1:]) == tuple(federation.input_shape), f"train: samples of {federation.input_shape}")
        expect(all_finite(x, y), f"train: a sample of client {client} is not finite")
        if not y.is_floating_point() and y.numel():
            expect(int(y.max()) < max(federation.classes, 2), f"train: label {int(y.max())} of {federation.classes}")
        alone = federation.train(torch.tensor([client]), 0).of(0)
        same = torch.equal(x, alone[0]) and torch.equal(y, alone[1])
        expect(same, f"train: the samples of client {client} depend on other clients")


def check_model(model: ModelSpec, input_shape: tuple[int, ...] = (1, 28, 28), classes: int = 10) -> None:
    """Promises of a model: an ordinary module with something to train, drawn from torch's own generator; in evaluation
    mode a sample's output does not depend on other samples."""
    expect_part(model, ModelSpec)
    built = []
    for _ in range(2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            built.append(model.build(input_shape, classes))
    first, second = (module.state_dict() for module in built)
    expect(all(isinstance(module, nn.Module) for module in built), "build: returns a torch.nn.Module")
    expect(any(p.requires_grad for p in built[0].parameters()), "build: something must be trainable")
    same = first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)
    expect(same, "build: the same weights for the same seed of torch")
    x = torch.rand(3, *input_shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        together, alone = scores_of(built[0].eval()(x)), scores_of(built[0].eval()(x[:1]))
    expect(together.shape == (3, classes), f"the module gives {tuple(together.shape)} for 3 samples, {classes} classes")
    expect(torch.allclose(together[:1], alone, atol=1e-5), "the module: a sample's output depends on other samples")


def check_task(task: TaskSpec, output: Tensor | None = None, target: Tensor | None = None) -> None:
    """Promises of a task: loss and metrics give one finite number per sample, independent of other samples; the loss
    has a finite gradient. Pass an output and targets where they are not scores [B, 4] and labels."""
    expect_part(task, TaskSpec)
    output = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)) if output is None else output
    target = torch.arange(len(output)) % output.shape[1] if target is None else target
    task.check_output(tuple(output.shape), target)
    expect(task.main in {*task.metrics, "loss"}, f"main: {task.main!r} is not among {sorted(task.metrics)}")
    for name, function in {"loss": task.loss, **task.metrics}.items():
        value_B = function(output, target)
        right = value_B.shape == (len(output),) and all_finite(value_B)
        expect(right, f"{name}: one finite number per sample, not {value_B.tolist()}")
        alone = torch.cat([function(output[i : i + 1], target[i : i + 1]) for i in range(len(output))])
        expect(torch.allclose(value_B, alone, atol=1e-6), f"{name}: a sample's number depends on other samples")
    leaf = output.clone().requires_grad_()
    task.loss(leaf, target).sum().backward()
    expect(leaf.grad is not None and all_finite(leaf.grad), "loss: its gradient must be finite")
