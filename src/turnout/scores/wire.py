"""The records of exchange.py as trees, which `pack` of runtimes/wire.py makes bytes of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TypeVar

from turnout.scores.exchange import (
    BuildAnswer,
    BuildRequest,
    LearnReply,
    LearnRequest,
    OwnOutput,
    ScoreReply,
    Spent,
)
from turnout.types import State, Turnout

Record = TypeVar("Record", ScoreReply, LearnReply, OwnOutput)


def build_request_tree(request: BuildRequest) -> State:
    return {"t": request.t, "lr": request.lr, "client": request.client_C, "averages": request.averages}


def build_request_of(tree: State) -> BuildRequest:
    return BuildRequest(tree["t"], tree["lr"], tree["client"], tree["averages"])


def build_answer_tree(answer: BuildAnswer) -> State:
    return {
        "turnout": dict(vars(answer.turnout)),
        "replies": {str(reply.client): dict(vars(reply)) for reply in answer.replies},
        "spent": asdict(answer.spent),
    }


def build_answer_of(tree: State) -> BuildAnswer:
    replies = [ScoreReply(**reply) for reply in tree["replies"].values()]
    return BuildAnswer(Turnout(**tree["turnout"]), _sorted(replies), Spent(**tree["spent"]))


def learn_request_tree(request: LearnRequest) -> State:
    mean = {str(client): mean_Rl for client, mean_Rl in request.mean.items()}
    return {"t": request.t, "mean": mean, "open": request.open_R, "tested": request.tested_R}


def learn_request_of(tree: State) -> LearnRequest:
    mean = {int(client): mean_Rl for client, mean_Rl in tree["mean"].items()}
    return LearnRequest(tree["t"], mean, tree["open"], tree["tested"])


def learn_replies_tree(replies: Sequence[LearnReply]) -> State:
    return {
        str(reply.client): {"weights": reply.weights} | ({} if reply.output_Tl is None else {"output": reply.output_Tl})
        for reply in replies
    }


def learn_replies_of(tree: State) -> list[LearnReply]:
    found = [LearnReply(int(client), reply.get("output"), reply["weights"]) for client, reply in tree.items()]
    return _sorted(found)


def own_outputs_tree(outputs: Sequence[OwnOutput]) -> State:
    return {str(own.client): {"labels": own.set_l, "output": own.output_Tl} for own in outputs}


def own_outputs_of(tree: State) -> list[OwnOutput]:
    return _sorted([OwnOutput(int(client), own["labels"], own["output"]) for client, own in tree.items()])


def _sorted(records: Sequence[Record]) -> list[Record]:
    """In the order of client ids; a tree has none."""
    return sorted(records, key=lambda record: record.client)
