"""The experiment of docs/tour.md in FedLab 1.3, whose server handler takes the plain mean; needs digits.pt.

It was run with a module of dummy names in place of torchvision, which FedLab imports for data sets that are not used.
"""

import torch
import torch.nn as nn
from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
from fedlab.core.standalone import StandalonePipeline
from torch.utils.data import DataLoader, TensorDataset

data = torch.load("digits.pt")


def make_model():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


class Clients:
    def get_dataloader(self, client, batch_size):
        return DataLoader(TensorDataset(*data["clients"][client]), batch_size, shuffle=True)


class Pipeline(StandalonePipeline):
    def evaluate(self):
        x, y = data["test"]
        if self.handler.if_stop:
            print((self.handler.model(x).argmax(1) == y).float().mean().item())


trainer = FedAvgSerialClientTrainer(make_model(), num_clients=100)
trainer.setup_dataset(Clients())
trainer.setup_optim(epochs=3, batch_size=10, lr=0.1)
Pipeline(FedAvgServerHandler(make_model(), global_round=30, sample_ratio=0.1), trainer).main()
