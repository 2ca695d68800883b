"""The experiment of docs/tour.md in Flower 1.41, with its message API and its simulation on Ray; needs digits.pt."""

import torch
import torch.nn as nn
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.utils.data import DataLoader, TensorDataset

client_app, server_app = ClientApp(), ServerApp()
data = torch.load("digits.pt")


def make_model():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


@client_app.train()
def train(message, context):
    model, (x, y) = make_model(), data["clients"][context.node_config["partition-id"]]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for x_B, y_B in DataLoader(TensorDataset(x, y), batch_size=10, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x_B), y_B).backward()
            optimizer.step()
    metrics = MetricRecord({"num-examples": len(y)})
    reply = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=reply, reply_to=message)


def evaluate(server_round, arrays):
    model, (x, y) = make_model(), data["test"]
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": (model(x).argmax(1) == y).float().mean().item()})


@server_app.main()
def main(grid, context):
    strategy = FedAvg(fraction_train=0.1, fraction_evaluate=0.0, min_available_nodes=100)
    start = ArrayRecord(make_model().state_dict())
    result = strategy.start(grid, start, num_rounds=30, evaluate_fn=evaluate)
    print(result.evaluate_metrics_serverapp[30])


run_simulation(server_app, client_app, num_supernodes=100)
