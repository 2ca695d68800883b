"""The experiment of docs/tour.md in pfl 0.6; needs digits.pt (write_digits.py)."""

import torch
import torch.nn as nn
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel

data = torch.load("digits.pt")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def loss(self, x, y):
        return nn.functional.cross_entropy(self.layers(x), y)

    @torch.no_grad()
    def metrics(self, x, y):
        return {"accuracy": Weighted((self.layers(x).argmax(1) == y).sum().item(), len(y))}


net = Net()
users = FederatedDataset(
    lambda user: PyTorchTensorDataset(data["clients"][user]), get_user_sampler("random", range(100))
)
model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
FederatedAveraging().run(
    algorithm_params=NNAlgorithmParams(
        central_num_iterations=30, evaluation_frequency=30, train_cohort_size=10, val_cohort_size=0
    ),
    backend=SimulatedBackend(users, users, postprocessors=[WeightByDatapoints()]),
    model=model,
    model_train_params=NNTrainHyperParams(local_num_epochs=3, local_learning_rate=0.1, local_batch_size=10),
    callbacks=[],
    send_metrics_to_platform=False,
)
print(model.evaluate(PyTorchTensorDataset(data["test"]), lambda name: name, NNEvalHyperParams(local_batch_size=1000)))
