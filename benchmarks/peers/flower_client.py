"""The ClientApp of the Flower benchmark, in a module of its own so that Ray's actors import it, not unpickle it.

Given every advantage: an actor makes the data and the model once and keeps them for all clients it plays.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from cases import CASES, build_model, make_tensors, train_client

app = ClientApp()


@cache
def load(name: str, dropout: bool, threads: int) -> tuple[nn.Module, Tensor, Tensor]:
    """An actor's model and everybody's data; made by the first message it gets."""
    torch.set_num_threads(threads)
    return build_model(CASES[name], dropout), *make_tensors(CASES[name])


@app.train()
def train(message: Message, context: Context) -> Message:
    """One client's work, from the arrays received to the arrays sent back."""
    config = message.content["config"]
    case = CASES[str(config["case"])]
    model, x_NS, y_NS = load(case.name, bool(config["dropout"]), int(config["threads"]))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    client = int(context.node_config["partition-id"])
    train_client(model, x_NS[client], y_NS[client], case)
    records = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": case.samples}),
    }
    return Message(content=RecordDict(records), reply_to=message)
