"""Answers of each kind that are right, and how the server reads and first uses one of that kind."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import torch

import turnout as to
from turnout.data.description import Description
from turnout.exchange import Measured
from turnout.parts.compression.base import Sending
from turnout.running.tracks.prepare import prepare
from turnout.running.tracks.weights import Weights
from turnout.runtimes import border
from turnout.runtimes.border import RowSchema
from turnout.runtimes.wire import measured_tree, pack, replies_tree
from turnout.scores.exchange import BuildAnswer, BuildRequest, LearnRequest, tree_of
from turnout.scores.runtimes import read_output, read_scores
from turnout.types import Replies
from worlds import download_for

Use = Callable[[bytes], object]  # reads an answer at the border and uses what it says; raises Refused, or nothing
Cases = list[tuple[bytes, Use]]
EVERY = {"name": "kitchen", "client": 1, "leaving": False, "holds": -1, "next": True, "why": ""}
HEADS = {
    "hello": {
        "examples": 8, "digest": "0" * 32, "values": "0" * 16, "key": "", "signature": "", "labels": [0, 2],
        "data": Description(1, (5,), "float32", (), "int64", 3, ("a", "b", "c")).text(),
    },
    "work": {"steps": 2, "training": 0.5, "download": None, "upload": 0.25},
    "measure": {"tested": 3},
}  # fmt: skip


def answers() -> dict[str, Cases]:
    """By kind."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tracks = [
            weights(c)
            for c in (to.compression.Dense(), to.compression.SparseTernary(keep=0.1), to.compression.TopK(keep=0.2))
        ]
        return {
            "hello": [(pack(EVERY | HEADS["hello"]), _introduction)],
            "head": [(pack(EVERY | more), partial(border.head, what)) for what, more in HEADS.items()],
            "work": [case for track in tracks for case in work(track)],
            "measure": [measured(tracks[0], *asked) for asked in ((True, False), (True, True))],
            "gradient": [gradient(tracks[0])],
            "rows": [rows()],
            **scores(),
        }


def _introduction(message: bytes) -> None:
    head = border.head("hello", message)
    torch.zeros(2, *border.description(head["data"]).target_shape)
    f"{head['name']} {head['key']}".encode()


def weights(compression: object) -> Weights:
    owner = torch.arange(3).repeat_interleave(8)
    x, y = torch.randn(24, 5, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3
    algorithm = to.Algorithm(to.Local(epochs=1, batch_size=4), compression=compression, terms=[to.terms.Scaffold()])
    model = to.models.MLP(4, batch_norm=True)
    track = prepare(to.Experiment(to.World(to.data.Own(x, y, owner)), model=model, algorithm=algorithm, rounds=1))
    assert isinstance(track, Weights)
    return track


def work(track: Weights) -> Cases:
    """A reply whose work counts, and one whose does not."""
    server, slots, algorithm = track.begin(), track.model.layout.shared_slots, track.algorithm
    client_1, like_P = torch.tensor([1]), server.shared_P
    download = download_for(client_1, track)
    clients, sending = track.runtime.clients, Sending(0, 0, client_1, slots)
    replies, _ = clients.work(download, track.runtime.full_work(client_1, 0))
    too_little = clients.unfinished(client_1, download)

    def used(message: bytes) -> None:
        both = Replies.join([border.work(message, replies, algorithm, sending), replies])
        update_RP = algorithm.compression.decode(both.message, Sending(0, 0, both.client_R, slots), like_P)
        good = torch.isfinite(update_RP.mean(0)).all() and torch.isfinite(both.report["loss"].mean())
        assert bool(good)
        assert int(both.report["bytes_up"].sum()) >= 0
        assert int(both.report["bytes_down"].sum()) >= 0

    def fetched(message: bytes) -> None:
        both = Replies.join([border.unfinished(message, algorithm, sending), too_little])
        owed_R = algorithm.compression.catch_up(
            server.compression, both.message.tensors, Sending(0, 0, both.client_R, slots)
        )
        assert int((owed_R + both.report["bytes_down"]).sum()) >= 0

    return [(pack(replies_tree(replies)), used), (pack(replies_tree(too_little)), fetched)]


def measured(track: Weights, common: bool, own: bool) -> tuple[bytes, Use]:
    value = {name: torch.tensor([0.5], dtype=torch.float64) for name in ("loss", "accuracy")}
    honest = to_measured(value if common else {}, value if own else {})

    def used(message: bytes) -> None:
        found = border.measured(message, track.experiment.task, common, own)
        for group, asked in ((found.common, common), (found.own, own)):
            assert set(group) == (set(value) if asked else set())
            assert all(torch.cat([v.double(), value[n]]).nanmean() >= 0 for n, v in group.items() if n == "accuracy")

    return honest, used


def to_measured(common: dict[str, torch.Tensor], own: dict[str, torch.Tensor]) -> bytes:
    return pack(measured_tree(Measured(common=common, own=own)))


def gradient(track: Weights) -> tuple[bytes, Use]:
    like_P = track.begin().shared_P

    def used(message: bytes) -> None:
        assert bool(torch.isfinite((border.gradient(message, like_P) + like_P).norm()))

    return pack({"gradient": torch.ones_like(like_P)}), used


def rows() -> tuple[bytes, Use]:
    like = {"term/scaffold/c": torch.zeros(9), "term/elastic/held": torch.zeros(1, dtype=torch.int64)}

    def used(message: bytes) -> None:
        found = border.rows(message, like)
        assert found.keys() == like.keys()
        for name, value in like.items():
            assert bool(torch.isfinite(torch.cat([value[None], found[name]]).double()).all())

    return pack({"rows": {name: value[None] for name, value in like.items()}}), used


def scores() -> dict[str, Cases]:
    """The three answers of a client of the score track."""
    experiment = to.Experiment(
        world=to.World(to.data.Arriving(to.data.Digits(), (("3", "5"), ("5", "8")), per_label=6, public=12)),
        model=to.models.MLP(4),
        algorithm=to.scores.Scores(
            local=to.Local(to.SGD(0.1), epochs=1, batch_size=5), distil=to.scores.Distil(epochs=1)
        ),
        rounds=1,
    )
    track = prepare(experiment)
    clients, one, set_l = track.runtime.clients, torch.tensor([1]), track.runtime.label_sets(torch.tensor([1]), 0)[0]
    public, labels = track.public, len(track.public.names)
    answer = clients.build(BuildRequest(0, 0.1, one), torch.ones(1, dtype=torch.float64))
    (reply,) = answer.replies
    mean = {1: torch.full_like(reply.f_Rl, 0.5)}
    learnt = clients.learn(LearnRequest(0, mean, public.open_R, public.tested_R))
    own = clients.measure(one, public.tested_R)
    tested = len(learnt[0].output_Tl)

    def built(message: bytes) -> None:
        kind = RowSchema((len(public.true_R), len(set_l)), low=0.0, high=1.0)
        found = read_scores(message, 1, set_l.tolist(), kind, answer.turnout.full_work, reply.examples)
        both = BuildAnswer.join([found, answer], torch.tensor([1, 1]), found.turnout.full_work)
        assert bool(torch.isfinite(sum(r.examples * r.f_Rl for r in both.replies)).all())
        assert sum(r.training for r in both.replies) >= 0

    def taught(message: bytes) -> None:
        found = read_output(message, 1, labels, tested)
        if found.output_Tl is not None:
            public.accuracy_of(found.output_Tl, found.set_l)

    return {
        "scores": [(pack(answer.to_tree()), built)],
        "learnt": [(pack(tree_of(learnt)), taught)],
        "outputs": [(pack(tree_of(own)), taught)],
    }
